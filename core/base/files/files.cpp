#include "core/base/files/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <utility>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/text.h"

namespace trireme {
namespace {

constexpr std::size_t kChunk = std::size_t{4} << 20;  // bytes that are summed and then written while they are in cache

/// Unique among the processes of all hosts that share the folder.
std::string temporary_name(const std::string& path) {
  return fmt::format("{}.{}.{}.tmp", path, host_name().substr(0, 64), ::getpid());
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// The first part of the path that exists and is no folder.
std::string file_on_the_way(const std::string& path) {
  std::filesystem::path part;
  std::error_code none;
  for (const auto& name : std::filesystem::path(path)) {
    part /= name;
    if (!std::filesystem::is_directory(part, none)) break;
  }
  return part.string();
}

void sync_folder(const std::string& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) throw CheckpointError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  // Some network file systems cannot sync a folder; on those the new name is already durable.
  if (::fsync(folder.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw CheckpointError(fmt::format("{}: cannot be synced to disk: {}", path, std::strerror(errno)));
}

/// Calls `use(data, size)` for the file's bytes, in order. @throws CheckpointError when the file cannot be read.
template <class Use>
void for_each_chunk(const std::string& path, const Use& use) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw CheckpointError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::vector<char> chunk(kChunk / 16);
  for (;;) {
    const ::ssize_t got = ::read(file.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CheckpointError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    if (got == 0) return;
    use(chunk.data(), static_cast<std::size_t>(got));
  }
}

/// What to do about an error number of a write to this path.
std::string write_remedy(int error, const std::string& path) {
  switch (error) {
    case ENOSPC: {
      struct statvfs space {};
      if (::statvfs(parent_of(path).c_str(), &space) != 0) return "free some space";
      const double left = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
      return fmt::format("{} are free there; free some space, or choose a folder on another disk", text::bytes(left));
    }
    case EDQUOT:
      return "your disk quota is used up; free some space, or choose a folder on another disk";
    case EFBIG:
      return "a file may not be that large here (ulimit -f, or the file system's own limit)";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may write to";
    case ENOENT:
      return "is its folder still there?";
    case ENOTDIR:
      return fmt::format("{} is a file; choose another folder", file_on_the_way(path));
    default:
      return "see the system's log";
  }
}

}  // namespace

std::string path_in(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    out.push_back(at->path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

std::string write_problem(const std::string& path, const char* what, int error) {
  return fmt::format("{}: {}: {}; {}", path, what, std::strerror(error), write_remedy(error, path));
}

FileWriter::FileWriter(std::string path, std::uint64_t expected)
    : path_(std::move(path)), temporary_(temporary_name(path_)), expected_(expected), digester_(expected) {
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot be created", errno);
  if (expected_ == 0) return;
  int result = 0;
  do result = ::fallocate(file_, 0, 0, static_cast<off_t>(expected_));
  while (result != 0 && errno == EINTR);
  const int error = result == 0 ? 0 : errno;
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return;  // else it is not supported here
  ::close(file_);
  ::unlink(temporary_.c_str());
  fail("cannot be written", error);
}

FileWriter::~FileWriter() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileWriter::fail(const char* what, int error) const {
  const auto needed = std::max(expected_, needed_);
  throw CheckpointError(fmt::format("{}: {}: {} (it needs {}); {}", path_, what, std::strerror(error),
                                    text::bytes(static_cast<double>(needed)), write_remedy(error, path_)));
}

void FileWriter::write(const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  needed_ += size;
  while (size > 0) {
    const std::size_t piece = std::min(size, kChunk);
    const ::ssize_t written = ::write(file_, at, piece);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot be written", written < 0 ? errno : ENOSPC);
    digester_.add(at, static_cast<std::size_t>(written));
    at += written;
    size -= static_cast<std::size_t>(written);
  }
}

FileDigest FileWriter::commit() {
  TRIREME_CHECK(expected_ == 0 || expected_ == needed_, "{}: {} bytes were expected, but {} were written", path_,
                expected_, needed_);
  // A full disk may be reported only here, because network file systems write late.
  if (::fsync(file_) != 0) fail("cannot be synced to disk", errno);
  if (::close(std::exchange(file_, -1)) != 0) fail("cannot be closed", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be renamed into place", errno);
  temporary_.clear();
  sync_folder(parent_of(path_));
  return digester_.finish();
}

FileDigest write_file(const std::string& path, std::string_view content) {
  FileWriter file(path, content.size());
  file.write(content.data(), content.size());
  return file.commit();
}

std::string read_file(const std::string& path) {
  std::string content;
  for_each_chunk(path, [&](const char* data, std::size_t size) { content.append(data, size); });
  return content;
}

FileDigest digest_file(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw CheckpointError(fmt::format("{}: cannot be read: {}", path, error.message()));
  Digester digester(size);
  for_each_chunk(path, [&](const char* data, std::size_t bytes) { digester.add(data, bytes); });
  return digester.finish();
}

void remove_temporary_files(const std::string& folder) {
  static const std::regex temporary(R"(.+\.[0-9]+\.tmp)");  // as temporary_name()
  std::error_code ignored;
  for (const auto& name : names_in(folder))
    if (const auto path = path_in(folder, name);
        std::regex_match(name, temporary) && std::filesystem::is_regular_file(path, ignored))
      std::filesystem::remove(path, ignored);
}

void copy_file(const std::string& from, const std::string& to) {
  FileWriter out(to);
  for_each_chunk(from, [&](const char* data, std::size_t size) { out.write(data, size); });
  out.commit();
}

void link_file(const std::string& from, const std::string& to) {
  const auto temporary = temporary_name(to);
  ::unlink(temporary.c_str());
  if (::link(from.c_str(), temporary.c_str()) != 0) return copy_file(from, to);
  if (::rename(temporary.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw CheckpointError(write_problem(to, "cannot be renamed into place", error));
  }
  ::unlink(temporary.c_str());  // rename() does nothing if both names are already the same file
  sync_folder(parent_of(to));
}

bool lies_in(const std::string& path, const std::string& folder) {
  std::error_code none;
  auto outer = std::filesystem::weakly_canonical(folder, none);
  if (!outer.has_filename()) outer = outer.parent_path();  // a trailing slash
  const auto inner = std::filesystem::weakly_canonical(path, none);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw CheckpointError(write_problem(path, "the folder cannot be created", error.value()));
}

/// Why a rename in the folder may not be on the disk; "" if it is.
static std::string sync_problem(const std::string& folder) {
  try {
    sync_folder(folder);
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

/// Gives the folder the name of one that is there. Returns where the other one is afterwards. @throws CheckpointError
static std::string exchange_folders(const std::string& from, const std::string& to, const std::string& aside) {
  const auto refuse = [&](int error) {
    throw CheckpointError(write_problem(to, "cannot replace the folder that is there", error));
  };
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return from;
  if (errno != EINVAL && errno != ENOSYS) refuse(errno);
  // The file system cannot exchange folders: rename the old folder first.
  std::error_code ignored;
  std::filesystem::remove_all(aside, ignored);
  if (::rename(to.c_str(), aside.c_str()) != 0) refuse(errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), to.c_str());
    refuse(error);
  }
  return aside;
}

std::string publish_folder(const std::string& from, const std::string& to, const std::string& aside) {
  sync_folder(from);
  if (!std::filesystem::exists(to)) {
    if (::rename(from.c_str(), to.c_str()) != 0)
      throw CheckpointError(write_problem(to, "cannot be renamed into place", errno));
    return sync_problem(parent_of(to));
  }
  const auto replaced = exchange_folders(from, to, aside);
  auto problem = sync_problem(parent_of(to));
  std::error_code ignored;
  if (problem.empty()) std::filesystem::remove_all(replaced, ignored);
  return problem;
}

}  // namespace trireme
