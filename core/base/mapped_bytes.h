// A file's bytes, mapped into memory for reading.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"

namespace trireme {

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
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) refuse(fmt::format("cannot be mapped into memory: {}", std::strerror(errno)));
  return {std::shared_ptr<const void>(mapped, [size](const void* at) { ::munmap(const_cast<void*>(at), size); }),
          {static_cast<const char*>(mapped), size}};
}

}  // namespace trireme
