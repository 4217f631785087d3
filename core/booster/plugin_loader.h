// Finding and loading plugins. A loaded plugin is never closed: objects it made may outlive any handle to it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/plugin.h"

namespace trireme {

/// Folder of the built-in plugins: lib/trireme/plugins beside libtrireme, or $TRIREME_PLUGIN_PATH (colon-separated
/// folders, searched first).
std::vector<std::string> plugin_folders();

struct PluginFile {
  std::string name;  ///< file name without .so
  std::string path;
};
/// All .so files of the plugin folders, by name.
std::vector<PluginFile> list_plugins();

/// `name_or_path`: a name from list_plugins(), or a path (anything with a '/' or ending in .so). The file's path.
/// @throws ConfigError: no such name (lists the known ones and the nearest)
std::string plugin_path(const std::string& name_or_path);

/// The plugin of that file. @throws ConfigError: not found, not a plugin, or built for another version (both values and
/// the remedy), before any of its code ran.
std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path);

/// Keys of [plugin.NAME] with their values, as a program gives them: {{"tp_size", 2}, {"pp_style", "zbv"}}.
using PluginOptions = std::map<std::string, FieldValue>;
/// The same, configured. @throws ConfigError also for a key that the plugin has not, or a value that it does not take
std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path, const PluginOptions& options);

/// A file that names its plugin may hold the sections of others, to switch between them; each [plugin.NAME] must be of
/// the `chosen` one or of one that list_plugins() finds, and what stands in it must be what that plugin takes. @throws
/// ConfigError, for a slip in a name or a key would silently change nothing.
void check_plugin_sections(const config::RunConfig& config, const std::string& chosen);

/// The plugin that the run chooses, with its section read and what [parallel] and [train] share with it settled.
/// @throws ConfigError
std::unique_ptr<Plugin> configured_plugin(config::RunConfig& config);

}  // namespace trireme
