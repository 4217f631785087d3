#include "core/booster/plugin_loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/plugin_note.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

fs::path own_folder() {
  Dl_info info{};
  // The address of any function in libtrireme identifies its file.
  TRIREME_CHECK(dladdr(reinterpret_cast<void*>(&plugin_folders), &info) != 0, "cannot find libtrireme itself");
  return fs::absolute(info.dli_fname).parent_path();
}

}  // namespace

std::string plugin_path(const std::string& name_or_path) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".so")) return name_or_path;
  std::vector<std::string> known;
  for (const auto& file : list_plugins()) {
    if (file.name == name_or_path) return file.path;
    known.push_back(file.name);
  }
  throw ConfigError(fmt::format("parallel.plugin: no plugin \"{}\" (known: {}; or a path to a .so){}", name_or_path,
                                known.empty() ? "none; is the installation complete?" : text::join(known),
                                text::did_you_mean(name_or_path, known)));
}

/// Compares the versions that the file was built with to those of this libtrireme. @throws ConfigError
static void refuse_mismatch(const std::string& path) {
  const auto theirs = read_note(path), ours = own_note();
  const auto compare = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b)
      throw ConfigError(fmt::format("{}: built for {} {}, but this is {} {}; rebuild it against this Trireme", path,
                                    what, a.empty() ? "(none)" : a, what, b));
  };
  compare("plugin ABI", theirs.abi, ours.abi);
  compare("Trireme", theirs.trireme, ours.trireme);
  compare("LibTorch", theirs.torch, ours.torch);
  compare("compiler", theirs.compiler, ours.compiler);
}

void* load_function(const std::string& path, const std::string& key, const std::string& what, const char* function) {
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    throw ConfigError(fmt::format("{}: {} is {}; give the path of {}'s .so", key, path,
                                  fs::is_directory(path, error) ? "a folder" : "not a file that can be read", what));
  try {
    refuse_mismatch(path);
  } catch (const ConfigError& mismatch) {
    throw ConfigError(fmt::format("{}: {}", key, mismatch.what()));
  }
  void* handle = dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw ConfigError(fmt::format("{}: {}: cannot be loaded: {}", key, path, dlerror()));
  void* found = dlsym(handle, function);
  if (found == nullptr) {
    const char* remedy = dlsym(handle, "trireme_extend") != nullptr ? "; it is an extension: name it in run.extensions"
                         : dlsym(handle, "trireme_plugin_make") != nullptr
                             ? "; it is a plugin: name it in parallel.plugin"
                             : "";
    throw ConfigError(fmt::format("{}: {}: exports no {}{}", key, path, function, remedy));
  }
  return found;
}

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("TRIREME_PLUGIN_PATH")) {
    std::string all = path;
    for (std::size_t at = 0; at <= all.size();) {
      const auto end = std::min(all.find(':', at), all.size());
      if (end > at) folders.push_back(all.substr(at, end - at));
      at = end + 1;
    }
  }
  folders.push_back((own_folder() / "trireme" / "plugins").lexically_normal().string());
  return folders;
}

std::vector<PluginFile> list_plugins() {
  std::map<std::string, std::string> found;  // the first folder that contains a name takes precedence
  for (const auto& folder : plugin_folders()) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().extension() == ".so") found.emplace(entry.path().stem().string(), entry.path().string());
  }
  std::vector<PluginFile> files;
  for (const auto& [name, path] : found) files.push_back({name, path});
  return files;
}

std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path) {
  void* make = load_function(plugin_path(name_or_path), "parallel.plugin", "a plugin", "trireme_plugin_make");
  return std::unique_ptr<Plugin>(reinterpret_cast<Plugin* (*)()>(make)());
}

config::Table PluginOptions::section_of(const Plugin& plugin) const {
  const auto& fields = plugin.fields();
  if (options_ != nullptr && (fields.described == nullptr || *fields.described != *type_))
    throw ConfigError(
        fmt::format("these options are those of the plugin \"{}\", but \"{}\" is loaded, which has others", plugin_,
                    plugin.name()));
  if (options_ != nullptr) return config::as_section(fields, options_.get());
  config::Table section;
  section.path = fields.section;
  section.origin.source = "the program's options";
  for (const auto& [key, value] : keys_)
    section.entries[key] = {value, {fmt::format("{}.{} = {}", section.path, key, config::to_toml(value))}};
  return section;
}

std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path, const PluginOptions& options,
                                    const PluginKinds& kinds) {
  auto plugin = load_plugin(name_or_path);
  plugin->set_kinds(kinds);
  const auto section = options.section_of(*plugin);
  plugin->configure(&section);
  return plugin;
}

}  // namespace trireme
