#include "datasets/shard_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/files/files.h"
#include "core/base/random.h"
#include "datasets/index_cache.h"
#include "datasets/shard_command.h"
#include "datasets/shard_pattern.h"

namespace trireme::datasets {
namespace {

constexpr const char* kLockName = ".lock";
constexpr double kFreeShare = 0.05;  // of the disk
constexpr auto kLockTick = std::chrono::milliseconds(20);

std::string fetched_folder() { return cache_folder("shards"); }

std::string fetched_path(const std::string& shard) {
  return path_in(fetched_folder(), fmt::format("{:016x}.tar", random::hash(shard)));
}

/// The right to fetch a shard and to remove it: one process or thread at a time has it, until it has opened the file.
class ShardLock {
 public:
  explicit ShardLock(const std::string& path)
      : file_(::open(path_in(fetched_folder(), kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    range_.l_type = F_WRLCK;
    range_.l_whence = SEEK_SET;
    range_.l_start = static_cast<off_t>(random::hash(path) >> 2);
    range_.l_len = 1;
  }
  enum class State { held, taken, unknown };
  /// unknown: the file system has no locks.
  State acquire() {
    if (::fcntl(file_.get(), F_OFD_SETLK, &range_) == 0) return State::held;
    return errno == EAGAIN || errno == EACCES || errno == EINTR ? State::taken : State::unknown;
  }

 private:
  FileDescriptor file_;
  struct flock range_ {};
};

/// Removes the temporary files of all shards that nobody fetches now.
void remove_abandoned() {
  constexpr std::string_view kEnding = ".tar.";  // the name of the shard's file ends with its first four characters
  for (const auto& name : names_in(fetched_folder())) {
    const auto end = name.find(kEnding);
    if (end == name.npos) continue;
    std::error_code none;
    ShardLock lock(path_in(fetched_folder(), name.substr(0, end + kEnding.size() - 1)));
    if (lock.acquire() == ShardLock::State::held) std::filesystem::remove(path_in(fetched_folder(), name), none);
  }
}

/// Null: there is no such file, or one of another size, which a command has written at another time.
std::shared_ptr<const TarFile> open_fetched(const std::string& shard, TarFile::Access access,
                                            const std::optional<ShardContent>& known) {
  const auto path = fetched_path(shard);
  if (!file_stamp(path)) return nullptr;
  try {
    auto file = std::make_shared<const TarFile>(path, access, shard);
    if (known && file->size() != known->bytes) return nullptr;
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // the time of its last use
    return file;
  } catch (const DataError&) {
    if (!file_stamp(path)) return nullptr;  // removed just now
    throw;
  }
}

/// The shard's command has written something else than was indexed.
[[noreturn]] void refuse_content(const std::string& shard, const std::string& what) {
  throw DataError(
      fmt::format("{}: writes {} than when it was indexed; if that is right, remove the folders {} and {}, and start a "
                  "new run",
                  shard, what, index_folder().string(), fetched_folder()));
}

}  // namespace

void ShardCache::forget(const std::string& shard) {
  std::error_code none;
  if (is_command(shard)) std::filesystem::remove(fetched_path(shard), none);
}

std::shared_ptr<const TarFile> ShardCache::open(const std::string& shard, TarFile::Access access,
                                                const std::optional<ShardContent>& known, const std::stop_token& stop) {
  if (!is_command(shard)) return std::make_shared<const TarFile>(shard, access);
  if (fetched_folder().empty())
    throw DataError(fmt::format("{}: there is no cache folder to fetch it into; set XDG_CACHE_HOME", shard));
  while (true) {  // another process may remove the file before it is opened
    if (auto file = open_fetched(shard, access, known)) return file;
    if (!options_.runs_commands)
      throw DataError(fmt::format("{}: is not fetched yet, and a plan runs no command; train first", shard));
    try {
      make_folder(fetched_folder());
      ShardLock lock(fetched_path(shard));
      auto state = lock.acquire();
      for (; state == ShardLock::State::taken; state = lock.acquire()) {
        if (stop.stop_requested()) throw DataError(fmt::format("{}: is not needed any more", shard));
        std::this_thread::sleep_for(kLockTick);
      }
      if (auto file = open_fetched(shard, access, known)) return file;  // another one has fetched it
      fetch_once(shard, known, stop);
      if (auto file = open_fetched(shard, access, known)) return file;
    } catch (const CheckpointError& error) {  // of the cache's files
      throw DataError(fmt::format("{}: {}; the cache folder is that of XDG_CACHE_HOME", shard, error.what()));
    }
  }
}

void ShardCache::fetch_once(const std::string& shard, const std::optional<ShardContent>& known,
                            const std::stop_token& stop) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = failed_.find(shard); found != failed_.end()) throw DataError(found->second);
  }
  try {
    fetch(shard, known, stop);
  } catch (const DataError& error) {
    const std::lock_guard lock(mutex_);
    if (!stop.stop_requested()) failed_.emplace(shard, error.what());
    throw;
  }
}

void ShardCache::fetch(const std::string& shard, const std::optional<ShardContent>& known,
                       const std::stop_token& stop) const {
  if (known) make_room(known->bytes);
  {
    FileWriter file(fetched_path(shard), known ? static_cast<std::uint64_t>(known->bytes) : 0);
    ShardContent content;
    run_shard_command(shard, shard.substr(kCommandPrefix.size()), options_.patience, stop, [&](std::string_view part) {
      content.bytes += static_cast<std::int64_t>(part.size());
      if (known && content.bytes > known->bytes) refuse_content(shard, fmt::format("more ({} bytes)", known->bytes));
      content.crc32 = crc32(content.crc32, part.data(), part.size());
      file.write(part.data(), part.size());
    });
    if (known && content.bytes < known->bytes)
      refuse_content(shard, fmt::format("less ({} bytes instead of {})", content.bytes, known->bytes));
    if (known && content.crc32 != known->crc32) refuse_content(shard, "another content");
    if (content.bytes == 0) throw DataError(fmt::format("{}: has written nothing to its standard output", shard));
    file.commit();
  }
  make_room(0);
}

void ShardCache::make_room(std::int64_t coming) const {
  struct Fetched {
    timespec used;
    std::int64_t bytes;
    std::string path;
  };
  remove_abandoned();
  std::vector<Fetched> files;
  auto total = static_cast<double>(coming);
  for (const auto& name : names_in(fetched_folder())) {
    const auto path = path_in(fetched_folder(), name);
    struct stat status {};
    if (!name.ends_with(".tar") || ::stat(path.c_str(), &status) != 0) continue;
    files.push_back({status.st_mtim, status.st_size, path});
    total += static_cast<double>(status.st_size);
  }
  std::sort(files.begin(), files.end(), [](const Fetched& a, const Fetched& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  double surplus = 0;
  struct statvfs disk {};
  if (options_.most_gb)
    surplus = total - *options_.most_gb * 1e9;
  else if (::statvfs(fetched_folder().c_str(), &disk) == 0)
    surplus = static_cast<double>(coming) +
              (kFreeShare * static_cast<double>(disk.f_blocks) - static_cast<double>(disk.f_bavail)) *
                  static_cast<double>(disk.f_frsize);
  for (std::size_t i = 0; i + 1 < files.size() && surplus > 0; ++i) {  // all but the one used last
    std::error_code none;
    ShardLock lock(files[i].path);
    if (lock.acquire() == ShardLock::State::taken) continue;  // it is opened just now
    std::filesystem::remove(files[i].path, none);
    surplus -= static_cast<double>(files[i].bytes);
  }
}

void ShardCache::fetch_ahead(const std::string& shard, const ShardContent& known) {
  if (!is_command(shard)) return;
  const std::lock_guard lock(mutex_);
  wish_ = shard;
  wish_content_ = known;
  if (!ahead_.joinable()) ahead_ = std::jthread([this](const std::stop_token& stop) { fetch_wishes(stop); });
  wished_.notify_one();
}

void ShardCache::fetch_wishes(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wished_.wait(lock, stop, [&] { return !wish_.empty(); })) {
    const auto shard = std::exchange(wish_, "");
    const auto known = wish_content_;
    lock.unlock();
    try {
      static_cast<void>(open(shard, TarFile::Access::headers, known, stop));
    } catch (const std::exception&) {  // whoever reads it finds the same
    }
    lock.lock();
  }
}

}  // namespace trireme::datasets
