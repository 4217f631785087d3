#include "core/train/plugin_sections.h"

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/plugin_loader.h"

namespace trireme::train {
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

/// Null when the plugin cannot be used here (`trireme plugins` says why); its section is then not checked.
std::unique_ptr<Plugin> plugin_if_usable(const std::string& path) {
  try {
    return load_plugin(path);
  } catch (const ConfigError&) {
    return nullptr;
  }
}

void adopt_parallel_options(const Plugin& plugin, RunConfig& config) {
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
  copy_shared_options(plugin, train_section_fields(), &config.train);
  // The plugin's section is read without knowledge of train.precision, so this is checked here.
  if (config.train.precision == "fp16" || section == nullptr) return;
  for (const auto& field : train_section_fields().fields)
    if (field.rules.only && field.rules.only->key == "precision" && section->find(field.key) != nullptr)
      config::fail(section, field.key,
                   fmt::format("has no effect in {}: only fp16 has a loss scale", config.train.precision));
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
      if (const auto plugin = plugin_if_usable(file->path)) plugin->configure(&section);
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
  auto plugin = load_plugin(config.parallel.plugin);
  adopt_parallel_options(*plugin, config);
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
          .dir = config.run.dir,
          .skips_bad_samples = config.data.on_bad_sample == "skip"};
}

}  // namespace trireme::train
