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
