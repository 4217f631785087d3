// trireme config
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "apps/commands/commands.h"
#include "apps/config_file.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/booster/plugin_loader.h"
#include "core/config/document.h"
#include "core/config/run_config.h"
#include "core/train/prepare.h"
#include "models/registry.h"

namespace trireme::apps {
namespace {

// All field tables: those of core, of the models, of the built-in plugins, and of the plugin that a file names. This
// object owns the models and plugins.
struct AllTables {
  Registry<std::shared_ptr<nn::ModelKind>> models = models::all_models();
  FieldTable model = config::model_fields();  ///< lists the names of the available models
  std::vector<std::unique_ptr<Plugin>> plugins;
  std::vector<const FieldTable*> tables = config::core_tables();

  AllTables() {
    for (auto& field : model.fields)
      if (field.key == "name") field.rules.choices = models.names();
    const auto common =
        std::find(tables.begin(), tables.end(), static_cast<const FieldTable*>(&config::model_fields()));
    *common = &model;
    auto at = std::next(common);  // a model's own rows follow [model]
    for (const auto& name : models.names()) at = std::next(tables.insert(at, &models.at(name)->fields()));
    for (const auto& file : list_plugins()) {
      try {
        add(load_plugin(file.path));
      } catch (const ConfigError&) {
        continue;  // `trireme plugins` prints the reason
      }
    }
  }
  void add(std::unique_ptr<Plugin> plugin) {
    for (const auto* table : tables)
      if (table->section == plugin->fields().section) return;
    plugins.push_back(std::move(plugin));
    tables.push_back(&plugins.back()->fields());
  }
};

std::string explained(const ConfigCommand& command) {
  AllTables all;
  config::Table root;
  if (!command.config.empty()) root = read_config(command.config);
  for (const auto& assignment : command.set) config::apply_override(root, assignment);
  all.add(load_plugin(config::read(root.table("parallel"), config::parallel_fields()).plugin));
  return config::explain(all.tables, command.explain, terminal_columns(STDOUT_FILENO));
}

std::string all_explained() {
  const AllTables all;
  std::string text;
  for (const auto* table : all.tables)
    text += config::explain({table}, table->section, terminal_columns(STDOUT_FILENO)) + "\n";
  return text;
}

// The resolved file, including the defaults of the chosen model and plugin.
std::string resolved(config::RunConfig config) {
  const auto kinds = models::all_models();
  const auto kind = kinds.at(config.model.name);
  const auto options = kind->default_options();
  config::read_into(&config.model_table(), kind->fields(), options.get());
  const auto plugin = configured_plugin(config);
  return train::resolved_toml(config, *plugin, *kind, options.get());
}

}  // namespace

int run(const ConfigCommand& command) {
  if (!command.explain.empty()) {
    put(explained(command));
    return 0;
  }
  if (command.explain_all) {
    put(all_explained());
    return 0;
  }
  if (command.markdown) {
    put(config::document_markdown(AllTables().tables));
    return 0;
  }
  const auto text = resolved(load_config(command.config, command.set));
  if (command.print)
    put(text);
  else
    put(fitted(fmt::format("{}: no error found (data and weights are read only by a run; --print shows every option)\n",
                           command.config)));
  return 0;
}

}  // namespace trireme::apps
