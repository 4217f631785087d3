#include "core/base/owned_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace trireme {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPattern = "XXXXXX";  // of mkdtemp()

FileDescriptor open_folder(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void remove_with_contents(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

/// Removes the folders with these names that no process owns. Where the file system has no locks, none is removed.
void remove_abandoned_folders(const std::string& parent, const std::string& begin) {
  std::error_code none;
  for (fs::directory_iterator entry(parent, none), end; !none && entry != end; entry.increment(none)) {
    const auto name = entry->path().filename().string();
    const auto path = entry->path().string();
    if (!name.starts_with(begin) || name.size() != begin.size() + kPattern.size() || !is_own_folder(path)) continue;
    const auto folder = open_folder(path);
    if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) remove_with_contents(path);
  }
}

}  // namespace

bool is_own_folder(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & 0077) == 0;
}

bool is_same_folder(const FileDescriptor& folder, const std::string& path) {
  struct stat held {
  }, named{};
  return ::fstat(folder.get(), &held) != 0 ||
         (::lstat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino && held.st_dev == named.st_dev);
}

/// Returns false when another process has taken the folder for an abandoned one before it was locked.
bool OwnedFolder::lock() {
  lock_ = open_folder(path_);
  if (!lock_) return errno != ENOENT;
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  return is_same_folder(lock_, path_);
}

OwnedFolder::OwnedFolder(const std::string& parent, const std::string& prefix) {
  const auto begin = fmt::format("{}-{}-", prefix, ::geteuid());
  remove_abandoned_folders(parent, begin);
  for (;;) {
    path_ = fmt::format("{}/{}{}", parent, begin, kPattern);
    if (::mkdtemp(path_.data()) == nullptr) {
      error_ = errno;
      path_.clear();
      return;
    }
    if (lock()) return;
  }
}

OwnedFolder::~OwnedFolder() {
  if (!path_.empty()) remove_with_contents(path_);
}

}  // namespace trireme
