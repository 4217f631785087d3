// Files that are read, or mapped into memory.
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
#include <type_traits>
#include <utility>

#include "core/base/error.h"
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

/// Opens a regular file for reading; returns its size, too. @throws Problem, which names the file and the reason
template <class Problem>
std::pair<FileDescriptor, std::size_t> open_regular(const std::string& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw Problem(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    throw Problem(fmt::format("{}: is not a regular file", path));
  return {std::move(file), static_cast<std::size_t>(info.st_size)};
}

struct MappedBytes {
  std::shared_ptr<const void> owner{};  ///< keeps them
  std::string_view view{};
};

/// For main(): a mapped file that becomes shorter, or cannot be read, ends the process with a line that names it, and
/// with the exit code of its kind, instead of SIGBUS.
void say_shortened_files();

namespace detail {
/// Keeps the mapping, under the file's name. `code`: of the process, when the file becomes shorter.
std::shared_ptr<const void> named(Mapping mapping, const std::string& path, ExitCode code);
}  // namespace detail

/// Maps a regular file; an empty one has no bytes. @throws Problem, which names the file and the reason
template <class Problem>
MappedBytes map_file(const std::string& path) {
  const auto [file, size] = open_regular<Problem>(path);
  if (size == 0) return {};  // it cannot be mapped
  auto mapped = map_memory(file.get(), size, PROT_READ, MAP_PRIVATE);
  if (!mapped) throw Problem(fmt::format("{}: cannot be mapped into memory: {}", path, std::strerror(errno)));
  const auto* bytes = static_cast<const char*>(mapped.get());
  constexpr auto kCode = std::is_base_of_v<CheckpointError, Problem> ? ExitCode::checkpoint : ExitCode::data;
  return {detail::named(std::move(mapped), path, kCode), {bytes, size}};
}

}  // namespace trireme
