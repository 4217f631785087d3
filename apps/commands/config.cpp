// trireme config
#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/config_file.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/booster/plugin_loader.h"
#include "core/config/document.h"
#include "core/setup/plugin_sections.h"
#include "core/setup/run_setup.h"

namespace trireme::apps {
namespace {

/// All field tables: those of the sections, each followed by those of what can be selected in it, of the built-in
/// plugins, and of the plugin that a file names. This object owns them.
struct AllTables {
  train::Kinds kinds;
  std::vector<std::unique_ptr<FieldTable>> sections;  ///< with the names that can be selected
  std::vector<std::unique_ptr<Plugin>> plugins;
  std::vector<const FieldTable*> tables;

  explicit AllTables(const config::Table& root) : kinds(kinds_for(root)) {
    const auto own = train::own_tables(kinds);
    for (const auto* section : train::section_tables()) {
      auto& table = *sections.emplace_back(std::make_unique<FieldTable>(*section));
      tables.push_back(&table);
      for (const auto* each : own) {
        if (each->section != table.section) continue;
        tables.push_back(each);
        for (auto& field : table.fields)
          if (field.key == each->choice_key) field.rules.choices.push_back(each->choice);
      }
      if (table.section == optim::optimizer_fields().section) tables.push_back(&optim::group_fields());
      if (table.section == train::data_fields().section) tables.push_back(&train::mix_fields());
    }
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
    plugin->set_kinds(kinds);
    plugins.push_back(std::move(plugin));
    tables.push_back(&plugins.back()->fields());
  }
};

std::string explained(const ConfigCommand& command) {
  config::Table root;
  if (!command.config.empty()) root = read_config(command.config);
  for (const auto& assignment : command.set) config::apply_override(root, assignment);
  AllTables all(root);
  all.add(load_plugin(config::read(root.table("parallel"), train::parallel_fields()).plugin));
  return config::explain(all.tables, command.explain, terminal_columns(STDOUT_FILENO));
}

std::string all_explained() {
  const AllTables all{{}};
  std::string text;
  const FieldTable* before = nullptr;
  for (const auto* table : all.tables) {
    if (before == nullptr || before->section != table->section)  // explains all tables of the section
      text += config::explain(all.tables, table->section, terminal_columns(STDOUT_FILENO)) + "\n";
    before = table;
  }
  return text;
}

// The resolved file, including the defaults of what it selects.
std::string resolved(train::RunConfig config) {
  train::require_data(config);
  const auto kind = config.kinds.models.at(config.model.name);
  const auto options = kind->default_options();
  config::read_into(&config.model_keys, kind->fields(), options.get());
  std::optional<TaskKind> task;
  if (config.train.task) task = train::select_task(config, *config.train.task);
  const auto plugin = train::configured_plugin(config);
  return train::resolved_toml(config, task ? &*task : nullptr, *plugin,
                              config::print_rows(kind->fields(), options.get()));
}

}  // namespace

int run(const ConfigCommand& command) {
  if (!command.explain.empty()) {
    put(explained(command));
  } else if (command.explain_all) {
    put(all_explained());
  } else if (command.markdown) {
    put(config::document_markdown(AllTables({}).tables));
  } else {
    const auto text = resolved(load_config(command.config, command.set));
    const auto* fine = ": no error found (data and weights are read only by a run; --print shows every option)\n";
    put(command.print ? text : fitted(command.config + fine));
  }
  return 0;
}

}  // namespace trireme::apps
