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

namespace {

void refuse_mismatch(const std::string& path) {
  const auto theirs = read_note(path), ours = own_note();
  const auto compare = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b)
      throw ConfigError(fmt::format("{}: built for {} {}, but this is {} {}; rebuild the plugin against this Trireme",
                                    path, what, a.empty() ? "(none)" : a, what, b));
  };
  compare("plugin ABI", theirs.abi, ours.abi);
  compare("Trireme", theirs.trireme, ours.trireme);
  compare("LibTorch", theirs.torch, ours.torch);
  compare("compiler", theirs.compiler, ours.compiler);
}

}  // namespace

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
  const auto path = plugin_path(name_or_path);
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    throw ConfigError(fmt::format("parallel.plugin: {} is {}; give the path of a plugin's .so", path,
                                  fs::is_directory(path, error) ? "a folder" : "not a file that can be read"));
  try {
    refuse_mismatch(path);
  } catch (const ConfigError& mismatch) {
    throw ConfigError(fmt::format("parallel.plugin: {}", mismatch.what()));
  }
  void* handle = dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw ConfigError(fmt::format("parallel.plugin: {}: cannot be loaded: {}", path, dlerror()));
  const auto make = reinterpret_cast<Plugin* (*)()>(dlsym(handle, "trireme_plugin_make"));
  if (make == nullptr) throw ConfigError(fmt::format("parallel.plugin: {}: exports no trireme_plugin_make", path));
  return std::unique_ptr<Plugin>(make());
}

std::unique_ptr<Plugin> load_plugin(const std::string& name_or_path, const PluginOptions& options) {
  auto plugin = load_plugin(name_or_path);
  config::Table section;
  section.path = plugin->fields().section;
  section.origin.source = "the program's options";
  for (const auto& [key, value] : options)
    section.entries[key] = {value, {fmt::format("{}.{} = {}", section.path, key, config::to_toml(value))}};
  plugin->configure(&section);
  return plugin;
}

/// Null when the plugin cannot be used here (`trireme plugins` says why); its section is then not checked.
static std::unique_ptr<Plugin> plugin_if_usable(const std::string& path) {
  try {
    return load_plugin(path);
  } catch (const ConfigError&) {
    return nullptr;
  }
}

void check_plugin_sections(const config::RunConfig& config, const std::string& chosen) {
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

std::unique_ptr<Plugin> configured_plugin(config::RunConfig& config) {
  auto plugin = load_plugin(config.parallel.plugin);
  adopt_parallel_options(*plugin, config);
  plugin->configure(config.plugin_table(plugin->name()));
  check_plugin_sections(config, plugin->name());
  adopt_train_options(*plugin, config);
  return plugin;
}

}  // namespace trireme
