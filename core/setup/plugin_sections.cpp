#include "core/setup/plugin_sections.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/plugin_loader.h"
#include "core/comm/axes.h"

namespace trireme::train {

const std::map<std::string, std::string>& short_keys() {
  static const auto keys = [] {
    std::map<std::string, std::string> all{
        {"schedule", "pp_style"}, {"sp_mode", "sequence_parallelism_mode"}, {"zero", "zero_stage"}};
    for (const auto& kind : comm::axis_kinds())
      if (!kind.key.empty() && !kind.option.empty()) all[kind.key] = kind.option;
    return all;
  }();
  return keys;
}

namespace {

/// Makes errors name a key in the form that the user writes. A key that is not set takes the form of the other keys.
void name_keys_as_written(config::Table& section, const config::Table& parallel) {
  const bool writes_short = std::any_of(short_keys().begin(), short_keys().end(),
                                        [&](const auto& pair) { return parallel.find(pair.first) != nullptr; });
  const bool writes_long = std::any_of(section.entries.begin(), section.entries.end(),
                                       [](const auto& entry) { return entry.second.written_as.empty(); });
  for (const auto& [brief, key] : short_keys()) {
    const auto* entry = section.find(key);
    const bool is_short = entry == nullptr ? writes_short || !writes_long : !entry->written_as.empty();
    if (is_short) section.user_names[key] = fmt::format("parallel.{}", brief);
  }
}

/// Whether --set gave the value.
bool is_set(const config::Entry& entry) { return entry.origin.line == 0; }

/// Null when the plugin cannot be used here (`trireme plugins` says why); its section is then not checked.
std::unique_ptr<Plugin> plugin_if_usable(const std::string& path, const PluginKinds& kinds) {
  try {
    auto plugin = load_plugin(path);
    plugin->set_kinds(kinds);
    return plugin;
  } catch (const ConfigError&) {
    return nullptr;
  }
}

void adopt_parallel_options(const Plugin& plugin, RunConfig& config) {
  const auto* parallel = config.root.table("parallel");
  if (parallel == nullptr) return;
  for (const auto& [brief, key] : short_keys()) {
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

/// Reads [train] with the keys of a plugin's section that it has too, so that its rules are checked for all of them.
/// The root stores them as keys of [train], so that later errors can give their locations.
void read_train_with(const config::Table& section, RunConfig& config) {
  auto& train = config.root.tables["train"];
  if (train.path.empty()) {
    train.path = "train";
    train.origin = section.origin;
  }
  for (const auto& [key, entry] : section.entries)
    if (train_section_fields().find(key) != nullptr && train.find(key) == nullptr)
      train.entries.emplace(key, config::Entry{entry.value, entry.origin, fmt::format("{}.{}", section.path, key)});
  const auto parts = config::split_section(train, train_section_fields());
  config.train = config::read(&parts.common, train_section_fields());
}

void adopt_train_options(const Plugin& plugin, RunConfig& config) {
  const auto* section = config.plugin_table(plugin.name());
  const auto* train = config.root.table("train");
  for (const auto& field : plugin.fields().fields) {
    const auto* shared = train_section_fields().find(field.key);
    const auto* there = train == nullptr || shared == nullptr ? nullptr : train->find(field.key);
    const auto value = field.get(plugin.options());
    if (there == nullptr || std::holds_alternative<std::monostate>(value)) continue;
    if (shared->get(&config.train) != value)
      config::fail(section, field.key,
                   fmt::format("is {}, but train.{} ({}) is {}; set only one of them, or both to the same value",
                               config::to_toml(value), field.key, there->origin.text(),
                               config::to_toml(shared->get(&config.train))));
  }
  if (section != nullptr) read_train_with(*section, config);
  copy_shared_options(plugin, train_section_fields(), &config.train);
}

void check_plugin_sections(const RunConfig& config, const std::string& chosen) {
  const auto* sections = config.root.table("plugin");
  if (sections == nullptr) return;
  const auto files = list_plugins();
  std::vector<std::string> known{chosen};
  for (const auto& file : files) known.push_back(file.name);
  const auto* parallel = config.root.table("parallel");
  const bool named = parallel != nullptr && parallel->find("plugin") != nullptr;
  for (const auto& [name, section] : sections->tables) {
    if (name == chosen) continue;
    const auto file = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name == name; });
    if (file == files.end())
      throw ConfigError(fmt::format("{}: [{}] is not the section of any plugin{}  (trireme plugins)",
                                    section.origin.text(), section.path, text::did_you_mean(name, known)));
    try {
      if (const auto plugin = plugin_if_usable(file->path, config.kinds)) plugin->configure(&section);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}; this run uses the plugin \"{}\", so [{}] can also be removed", error.what(),
                                    chosen, section.path));
    }
    // A file may hold unused sections if it names its plugin. A key from the command line must apply to this run.
    for (const auto& [key, entry] : section.entries)
      if (entry.origin.line == 0)
        throw ConfigError(fmt::format(
            "{}: belongs to the plugin \"{}\", but this run uses \"{}\"; remove it, or add --set parallel.plugin={}",
            entry.origin.text(), name, chosen, name));
    if (!named && !section.entries.empty())
      throw ConfigError(
          fmt::format("{}: [{}] has no effect, because this run uses the plugin \"{}\"; set parallel.plugin = \"{}\", "
                      "or remove the section",
                      section.origin.text(), section.path, chosen, name));
  }
}

}  // namespace

std::unique_ptr<Plugin> configured_plugin(RunConfig& config) {
  if (config.parallel.plugin == kAuto)
    config::fail(
        config.root.table("parallel"), "plugin",
        "the layout is chosen when ranks train (trireme train, trireme bench) or by trireme plan --search; name "
        "a plugin, or give --layouts");
  auto plugin = load_plugin(config.parallel.plugin);
  plugin->set_kinds(config.kinds);
  adopt_parallel_options(*plugin, config);
  // The config.toml of a run must work from any directory.
  if (config.plugin_table(plugin->name()) != nullptr)
    config::make_paths_absolute(plugin->fields(), config.root.tables["plugin"].tables[plugin->name()]);
  plugin->configure(config.plugin_table(plugin->name()));
  check_plugin_sections(config, plugin->name());
  adopt_train_options(*plugin, config);
  return plugin;
}

RunSettings settings_of(const RunConfig& config, const Plugin& plugin, int world_size) {
  return {.train = config.train,
          .world_size = world_size,
          .section = config.plugin_table(plugin.name()),
          .device = config.run.device,
          .memory_mb = config.run.memory_mb,
          .dir = config.run.dir};
}

}  // namespace trireme::train
