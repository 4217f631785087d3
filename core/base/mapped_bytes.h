// Files that are mapped into memory.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_descriptor.h"

namespace trireme {

struct Unmap {
  std::size_t bytes = 0;
  void operator()(void* memory) const { ::munmap(memory, bytes); }
};
/// Memory to which a file is mapped, until this is destroyed.
using Mapping = std::unique_ptr<void, Unmap>;

/// Maps the first bytes of a file; null, with errno, when that is not possible. `protection`, `flags`: as of mmap().
inline Mapping map_memory(int file, std::size_t bytes, int protection, int flags) {
  void* mapped = ::mmap(nullptr, bytes, protection, flags, file, 0);
  return Mapping(mapped == MAP_FAILED ? nullptr : mapped, Unmap{bytes});
}

struct MappedBytes {
  std::shared_ptr<const void> owner{};  ///< keeps them
  std::string_view view{};
};

/// Maps a regular file; an empty one has no bytes. @throws Problem, which names the file and the reason
template <class Problem>
MappedBytes map_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { throw Problem(fmt::format("{}: {}", path, why)); };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) refuse("is not a regular file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return {};  // it cannot be mapped
  auto mapped = map_memory(file.get(), size, PROT_READ, MAP_PRIVATE);
  if (!mapped) refuse(fmt::format("cannot be mapped into memory: {}", std::strerror(errno)));
  const auto* bytes = static_cast<const char*>(mapped.get());
  return {std::move(mapped), {bytes, size}};
}

}  // namespace trireme
