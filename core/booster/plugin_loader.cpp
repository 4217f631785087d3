#include "core/booster/plugin_loader.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/versions.h"

namespace trireme {
namespace fs = std::filesystem;
namespace {

/// The ELF note of a plugin (contract C7) says what it was built with. It is read before dlopen(), because an outdated
/// plugin can fail on an undefined symbol before any of its code could check versions. The text of the note:
/// "abi=1;trireme=0.1.0;torch=2.11.0;compiler=g++ 12.2".
using PluginNote = std::map<std::string, std::string>;

PluginNote parse(const std::string& versions) {
  PluginNote note;
  for (const auto& item : text::split(versions, ';'))
    if (const auto equals = item.find('='); equals != item.npos) note[item.substr(0, equals)] = item.substr(equals + 1);
  return note;
}

/// A bounds-checked view of the file: a plugin may be truncated or malicious. Only what is asked for is read, since
/// each rank reads each plugin that it loads.
class Image {
 public:
  explicit Image(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) throw ConfigError(fmt::format("{}: no such plugin file, or it cannot be read", path));
    size_ = static_cast<std::uint64_t>(in_.seekg(0, std::ios::end).tellg());
  }
  template <class T>
  T at(std::uint64_t offset) {
    T value;
    read(&value, offset, sizeof(T));
    return value;
  }
  std::string text(std::uint64_t offset, std::uint64_t size) {
    require(offset, size);
    std::string out(size, '\0');
    read(out.data(), offset, size);
    return out.c_str();
  }
  void require(std::uint64_t offset, std::uint64_t size) const {
    if (offset > size_ || size > size_ - offset)
      throw ConfigError(fmt::format("{}: not a shared object (truncated)", path_));
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  void read(void* to, std::uint64_t offset, std::uint64_t size) {
    require(offset, size);
    in_.seekg(static_cast<std::streamoff>(offset)).read(static_cast<char*>(to), static_cast<std::streamsize>(size));
    if (!in_) throw ConfigError(fmt::format("{}: cannot be read", path_));
  }
  std::string path_;
  std::ifstream in_;
  std::uint64_t size_ = 0;
};

std::optional<std::string> find_note(Image& image, std::uint64_t offset, std::uint64_t size) {
  image.require(offset, size);
  const std::uint64_t end = offset + size;
  const auto aligned = [](std::uint64_t n) { return (n + 3) & ~std::uint64_t{3}; };
  while (offset + sizeof(Elf64_Nhdr) <= end) {
    const auto header = image.at<Elf64_Nhdr>(offset);
    const std::uint64_t name = offset + sizeof(Elf64_Nhdr), text = name + aligned(header.n_namesz);
    if (image.text(name, header.n_namesz) == "Trireme" && header.n_type == 1) return image.text(text, header.n_descsz);
    offset = text + aligned(header.n_descsz);
  }
  return std::nullopt;
}

/// The versions that this libtrireme was built with.
PluginNote own_note() {
  return parse("abi=" TRIREME_ABI ";trireme=" TRIREME_VERSION ";torch=" TORCH_VERSION ";compiler=" TRIREME_COMPILER);
}

/// Reads the note of a shared object without loading it. @throws ConfigError when the file cannot be read, is not an
/// ELF64 file, or has no note (it is not a Trireme plugin).
PluginNote read_note(const std::string& path) {
  Image image(path);
  if (image.size() < sizeof(Elf64_Ehdr) || image.text(0, SELFMAG) != ELFMAG)
    throw ConfigError(fmt::format("{}: not a shared object, so neither a Trireme plugin nor an extension", path));
  const auto header = image.at<Elf64_Ehdr>(0);
  const auto segment_at = [&](std::uint64_t i) {
    return image.at<Elf64_Phdr>(header.e_phoff + i * header.e_phentsize);
  };
  // dlopen() would load a truncated file, and the process would crash when it reads past the end.
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) image.require(segment_at(i).p_offset, segment_at(i).p_filesz);
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = segment_at(i);
    if (segment.p_type != PT_NOTE) continue;
    if (const auto text = find_note(image, segment.p_offset, segment.p_filesz)) return parse(*text);
  }
  throw ConfigError(
      fmt::format("{}: has no Trireme ELF note: it is no Trireme plugin or extension, or its source does not end with "
                  "TRIREME_PLUGIN(...) or TRIREME_EXTENSION(...)",
                  path));
}

fs::path own_folder() {
  Dl_info info{};
  // The address of any function in libtrireme identifies its file.
  TRIREME_CHECK(dladdr(reinterpret_cast<void*>(&plugin_folders), &info) != 0, "cannot find libtrireme itself");
  return fs::absolute(info.dli_fname).parent_path();
}

}  // namespace

std::string plugin_path(const std::string& name_or_path) {
  if (text::is_path(name_or_path, ".so")) return name_or_path;
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
  for (const auto& [key, what] : {std::pair{"abi", "plugin ABI"}, std::pair{"trireme", "Trireme"},
                                  std::pair{"torch", "LibTorch"}, std::pair{"compiler", "compiler"}}) {
    const auto found = theirs.find(key);
    const auto built_for = found == theirs.end() ? "(none)" : found->second;
    if (const auto& own = ours.at(key); built_for != own)
      throw ConfigError(fmt::format("{}: built for {} {}, but this is {} {}; rebuild it against this Trireme", path,
                                    what, built_for, what, own));
  }
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
  for (auto& folder : text::split(environment("TRIREME_PLUGIN_PATH"), ':'))
    if (!folder.empty()) folders.push_back(std::move(folder));
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
