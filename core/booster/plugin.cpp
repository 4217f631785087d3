#include "core/booster/plugin.h"

#include "core/base/error.h"

namespace trireme {

config::TrainOptions with_own_options(const Plugin& plugin, config::TrainOptions train) {
  for (const auto& field : plugin.fields().fields) {
    const auto* shared = config::train_fields().find(field.key);
    const auto value = field.get(plugin.options());
    if (shared != nullptr && !std::holds_alternative<std::monostate>(value)) shared->set(&train, value);
  }
  return train;
}

void adopt_parallel_options(const Plugin& plugin, config::RunConfig& config) {
  const auto* parallel = config.root.table("parallel");
  if (parallel == nullptr) return;
  for (const auto& [brief, key] : {std::pair{"pp", "pp_size"}, std::pair{"schedule", "pp_style"},
                                   std::pair{"sp", "sp_size"}, std::pair{"sp_mode", "sequence_parallelism_mode"},
                                   std::pair{"tp", "tp_size"}, std::pair{"zero", "zero_stage"}}) {
    const auto* written = parallel->find(brief);
    if (written == nullptr) continue;
    if (plugin.fields().find(key) == nullptr)
      config::fail(parallel, brief,
                   fmt::format("the plugin \"{}\" has no such choice; set parallel.plugin = \"hybrid_parallel\", or "
                               "remove {}",
                               plugin.name(), brief));
    auto& plugins = config.root.tables["plugin"];
    if (plugins.path.empty()) plugins.path = "plugin";
    auto& section = plugins.tables[plugin.name()];
    if (section.path.empty()) {
      section.path = "plugin." + plugin.name();
      section.origin = parallel->origin;
    }
    if (const auto* there = section.find(key); there != nullptr && there->value != written->value)
      config::fail(parallel, brief,
                   fmt::format("plugin.{}.{} ({}) is {}; say it once, or alike", plugin.name(), key,
                               there->origin.text(), config::to_toml(there->value)));
    section.entries.emplace(key, config::Entry{written->value, written->origin, fmt::format("parallel.{}", brief)});
  }
}

void adopt_train_options(const Plugin& plugin, config::RunConfig& config) {
  const auto* section = config.plugin_table(plugin.name());
  const auto* train = config.root.table("train");
  for (const auto& field : plugin.fields().fields) {
    const auto* shared = config::train_fields().find(field.key);
    const auto* there = train == nullptr || shared == nullptr ? nullptr : train->find(field.key);
    const auto value = field.get(plugin.options());
    if (there == nullptr || std::holds_alternative<std::monostate>(value)) continue;
    if (shared->get(&config.train) != value)
      config::fail(section, field.key,
                   fmt::format("is {}, and train.{} ({}) is {}; say it once, or alike", config::to_toml(value),
                               field.key, there->origin.text(), config::to_toml(shared->get(&config.train))));
  }
  config.train = with_own_options(plugin, config.train);
  // A section's own reading cannot know the precision that [train] names.
  if (config.train.precision == "fp16" || section == nullptr) return;
  for (const auto& field : config::train_fields().fields)
    if (field.rules.only && field.rules.only->key == "precision" && section->find(field.key) != nullptr)
      config::fail(section, field.key,
                   fmt::format("changes nothing in {}: the loss scale is of fp16", config.train.precision));
}

}  // namespace trireme
