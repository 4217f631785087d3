#include "core/booster/plugin.h"

#include <algorithm>
#include <iterator>

#include "core/base/error.h"

namespace trireme {

void check_options(const BoostOptions& options) {
  config::check_options(options.train);
  config::check_options(options.optimizer);
  config::check_options(options.lr_schedule);
  config::check_options(options.loading);
}

/// Copies the values of the keys that a plugin's options share with `fields`.
static void copy_options(const Plugin& plugin, const FieldTable& fields, void* to) {
  for (const auto& field : plugin.fields().fields) {
    const auto* shared = fields.find(field.key);
    const auto value = field.get(plugin.options());
    if (shared != nullptr && !std::holds_alternative<std::monostate>(value)) shared->set(to, value);
  }
}

config::TrainOptions with_own_options(const Plugin& plugin, config::TrainOptions train) {
  copy_options(plugin, config::booster_train_fields(), &train);
  return train;
}

namespace {

/// Keys of [parallel] and the plugin keys that they abbreviate.
constexpr std::pair<const char*, const char*> kShort[] = {{"pp", "pp_size"}, {"schedule", "pp_style"},
                                                          {"sp", "sp_size"}, {"sp_mode", "sequence_parallelism_mode"},
                                                          {"tp", "tp_size"}, {"zero", "zero_stage"}};

/// Makes errors name a key in the form that the user writes. A key that is not set takes the form of the other keys.
void name_keys_as_written(config::Table& section, const config::Table& parallel) {
  const bool writes_short = std::any_of(std::begin(kShort), std::end(kShort),
                                        [&](const auto& pair) { return parallel.find(pair.first) != nullptr; });
  const bool writes_long = std::any_of(section.entries.begin(), section.entries.end(),
                                       [](const auto& entry) { return entry.second.written_as.empty(); });
  for (const auto& [brief, key] : kShort) {
    const auto* entry = section.find(key);
    const bool is_short = entry == nullptr ? writes_short || !writes_long : !entry->written_as.empty();
    if (is_short) section.user_names[key] = fmt::format("parallel.{}", brief);
  }
}

/// Whether --set gave the value.
bool is_set(const config::Entry& entry) { return entry.origin.line == 0; }

}  // namespace

void adopt_parallel_options(const Plugin& plugin, config::RunConfig& config) {
  const auto* parallel = config.root.table("parallel");
  if (parallel == nullptr) return;
  for (const auto& [brief, key] : kShort) {
    const auto* written = parallel->find(brief);
    if (written == nullptr) continue;
    if (plugin.fields().find(key) == nullptr)
      config::fail(
          parallel, brief,
          fmt::format(
              "the plugin \"{}\" does not have this option; set parallel.plugin = \"hybrid_parallel\", or remove {}",
              plugin.name(), brief));
    auto& plugins = config.root.tables["plugin"];
    if (plugins.path.empty()) plugins.path = "plugin";
    auto& section = plugins.tables[plugin.name()];
    if (section.path.empty()) {
      section.path = "plugin." + plugin.name();
      section.origin = parallel->origin;
    }
    if (const auto there = section.entries.find(key);
        there != section.entries.end() && there->second.value != written->value) {
      if (is_set(*written) == is_set(there->second))
        config::fail(
            parallel, brief,
            fmt::format("plugin.{}.{} ({}) is {}; set only one of them, or both to the same value", plugin.name(), key,
                        there->second.origin.text(), config::to_toml(there->second.value)));
      // --set applies to this run only and overrides the file under either name.
      if (is_set(there->second)) continue;
      section.entries.erase(there);
    }
    section.entries.emplace(key, config::Entry{written->value, written->origin, fmt::format("parallel.{}", brief)});
  }
  if (plugin.fields().find("tp_size") == nullptr || config.plugin_table(plugin.name()) == nullptr) return;
  name_keys_as_written(config.root.tables["plugin"].tables[plugin.name()], *parallel);
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
                   fmt::format("is {}, but train.{} ({}) is {}; set only one of them, or both to the same value",
                               config::to_toml(value), field.key, there->origin.text(),
                               config::to_toml(shared->get(&config.train))));
  }
  copy_options(plugin, config::train_fields(), &config.train);
  // The plugin's section is read without knowledge of train.precision, so this is checked here.
  if (config.train.precision == "fp16" || section == nullptr) return;
  for (const auto& field : config::train_fields().fields)
    if (field.rules.only && field.rules.only->key == "precision" && section->find(field.key) != nullptr)
      config::fail(section, field.key,
                   fmt::format("has no effect in {}: only fp16 has a loss scale", config.train.precision));
}

}  // namespace trireme
