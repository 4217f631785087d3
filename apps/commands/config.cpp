// trireme config
#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "core/base/error.h"
#include "core/booster/plugin_loader.h"
#include "core/config/document.h"
#include "core/config/run_config.h"
#include "core/train/prepare.h"
#include "models/registry.h"

namespace trireme::apps {
namespace {

// Every table there is: those of core, of the models and of the built-in plugins. The owners live as long as this.
struct AllTables {
  Registry<std::shared_ptr<nn::ModelKind>> models = models::all_models();
  std::vector<std::unique_ptr<Plugin>> plugins;
  std::vector<const FieldTable*> tables = config::core_tables();

  AllTables() {
    auto at = tables.begin() + 2;  // a model's own rows follow [model]
    for (const auto& name : models.names()) at = std::next(tables.insert(at, &models.at(name)->fields()));
    for (const auto& file : list_plugins()) {
      try {
        plugins.push_back(load_plugin(file.path));
      } catch (const ConfigError&) {
        continue;  // `trireme plugins` tells why
      }
      tables.push_back(&plugins.back()->fields());
    }
  }
};

// The resolved file, with what the chosen model and plugin leave at its default.
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
    if (!command.config.empty()) config::load(command.config, command.set);
    fmt::print("{}", config::explain(AllTables().tables, command.explain));
    return 0;
  }
  if (command.markdown) {
    fmt::print("{}", config::document_markdown(AllTables().tables));
    return 0;
  }
  const auto text = resolved(config::load(command.config, command.set));
  if (command.print)
    fmt::print("{}", text);
  else
    fmt::print("{}: no error found (--print shows every option)\n", command.config);
  return 0;
}

}  // namespace trireme::apps
