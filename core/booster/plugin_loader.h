// Finds and loads plugins. A loaded plugin is never unloaded, because its objects may outlive any handle to it.
#pragma once

#include <concepts>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
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

/// The options of a plugin as a struct that names it: those of plugins/options.h, or of a program's own plugin.
template <class O>
concept NamedPluginOptions = requires {
  { O::kPlugin } -> std::convertible_to<std::string>;
};

/// A plugin's options, for programs: a struct, or, where names are known only at run time, keys of [plugin.NAME] with
/// their values: {{"tp_size", 2}, {"pp_style", "zbv"}}.
class PluginOptions {
 public:
  PluginOptions() = default;
  PluginOptions(std::initializer_list<std::pair<const std::string, FieldValue>> keys) : keys_(keys) {}
  template <NamedPluginOptions O>
  PluginOptions(const O& options) : plugin_(O::kPlugin), type_(&typeid(O)), options_(std::make_shared<O>(options)) {}

  /// As a section of a file. @throws ConfigError for the struct of another plugin
  [[nodiscard]] config::Table section_of(const Plugin& plugin) const;

 private:
  std::map<std::string, FieldValue> keys_{};
  std::string plugin_{};
  const std::type_info* type_ = nullptr;
  std::shared_ptr<const void> options_{};
};

/// Loads and configures the plugin. @throws ConfigError also for an unknown key or an invalid value
std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path, const PluginOptions& options,
                                    const PluginKinds& kinds = {});
/// The same for the plugin that the struct names: load_plugin(plugins::TorchDdpOptions{.bucket_cap_mb = 10}).
template <NamedPluginOptions O>
std::unique_ptr<Plugin> load_plugin(const O& options, const PluginKinds& kinds = {}) {
  return load_plugin(O::kPlugin, PluginOptions(options), kinds);
}

}  // namespace trireme
