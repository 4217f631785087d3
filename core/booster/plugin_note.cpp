#include "core/booster/plugin_note.h"

#include <elf.h>

#include <fstream>
#include <optional>

#include "core/base/error.h"
#include "core/booster/versions.h"

namespace trireme {
namespace {

PluginNote parse(const std::string& text) {
  PluginNote note;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto end = std::min(text.find(';', at), text.size());
    const auto item = text.substr(at, end - at);
    const auto equals = item.find('=');
    const auto key = item.substr(0, equals), value = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (key == "abi") note.abi = value;
    if (key == "trireme") note.trireme = value;
    if (key == "torch") note.torch = value;
    if (key == "compiler") note.compiler = value;
    at = end + 1;
  }
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

}  // namespace

PluginNote own_note() {
  return parse("abi=" TRIREME_ABI ";trireme=" TRIREME_VERSION ";torch=" TORCH_VERSION ";compiler=" TRIREME_COMPILER);
}

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

}  // namespace trireme
