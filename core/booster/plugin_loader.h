// Finds and loads plugins. A loaded plugin is never unloaded, because its objects may outlive any handle to it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/plugin.h"

namespace trireme {

/// The folders that contain plugins: those in $TRIREME_PLUGIN_PATH (colon-separated), searched first, and
/// lib/trireme/plugins next to libtrireme.
std::vector<std::string> plugin_folders();

struct PluginFile {
  std::string name;  ///< file name without .so
  std::string path;
};
/// All .so files in the plugin folders, sorted by name.
std::vector<PluginFile> list_plugins();

/// Returns the plugin's file. `name_or_path`: a name from list_plugins(), or a path (contains '/' or ends in .so).
/// @throws ConfigError for an unknown name; the message lists the known names and the nearest one
std::string plugin_path(const std::string& name_or_path);

/// Loads a shared object that was built for this libtrireme, and returns the address of a function in it. `key` and
/// `what` name it in errors: "parallel.plugin", "a plugin". @throws ConfigError; no code of the file has run then,
/// unless it lacks the function
void* load_function(const std::string& path, const std::string& key, const std::string& what, const char* function);

/// Loads the plugin. @throws ConfigError when it is not found, is not a plugin, or was built for another version (the
/// message gives both versions and the remedy); none of its code has run then.
std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path);

/// Keys of [plugin.NAME] with their values, for programs: {{"tp_size", 2}, {"pp_style", "zbv"}}.
using PluginOptions = std::map<std::string, FieldValue>;
/// Loads and configures the plugin. @throws ConfigError also for an unknown key or an invalid value
std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path, const PluginOptions& options,
                                    const PluginKinds& kinds = {});

}  // namespace trireme
