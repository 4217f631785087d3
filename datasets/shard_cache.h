// ShardCache: opens the archives of shards. A file is opened where it is. What a command writes ("pipe:COMMAND",
// shard_pattern.h) is fetched into the user's cache folder first, unless it is there already.
//
// The folder is $XDG_CACHE_HOME/trireme/shards, or else ~/.cache/trireme/shards; all ranks and runs of a machine share
// it. A file is named by its command's text, and written under a temporary name by whoever holds the shard's lock: a
// byte of the file `.lock`, so that no lock is left behind. Of the files, those that were opened longest ago are
// removed when there are too many. Nothing depends on a file: what is gone is fetched again, and who has it open is not
// disturbed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "datasets/tar_archive.h"

namespace trireme::datasets {

/// What a command is known to write.
struct ShardContent {
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

struct ShardCacheOptions {
  /// In the folder, in units of 10^9 bytes; the file used last stays. Unset: what leaves a twentieth of the disk free.
  std::optional<double> most_gb{};
  bool runs_commands = true;                                     ///< false: only what is there can be opened
  std::chrono::milliseconds patience = std::chrono::minutes(5);  ///< how long a command may write nothing
};

/// Thread-safe.
class ShardCache {
 public:
  explicit ShardCache(const ShardCacheOptions& options = {}) : options_(options) {}
  /// Ends what is fetched ahead.
  ~ShardCache() = default;
  ShardCache(const ShardCache&) = delete;
  ShardCache& operator=(const ShardCache&) = delete;

  [[nodiscard]] bool runs_commands() const { return options_.runs_commands; }
  /// The archive, whose errors name the shard. `known`: a command that writes something else is refused.
  /// @throws DataError: no such file, a command that fails, a cache folder that cannot be written
  std::shared_ptr<const TarFile> open(const std::string& shard, TarFile::Access access,
                                      const std::optional<ShardContent>& known = std::nullopt) {
    return open(shard, access, known, {});
  }
  /// Fetches a command's shard in the background. There is one such wish at a time; an error shows when it is opened.
  void fetch_ahead(const std::string& shard, const ShardContent& known);
  /// What a command has written is not used again.
  static void forget(const std::string& shard);

 private:
  std::shared_ptr<const TarFile> open(const std::string& shard, TarFile::Access access,
                                      const std::optional<ShardContent>& known, const std::stop_token& stop);
  /// A command that has failed fails again without running: each sample of its shard would run it otherwise.
  void fetch_once(const std::string& shard, const std::optional<ShardContent>& known, const std::stop_token& stop);
  void fetch(const std::string& shard, const std::optional<ShardContent>& known, const std::stop_token& stop) const;
  /// Removes files until `coming` bytes more keep the limit.
  void make_room(std::int64_t coming) const;
  void fetch_wishes(const std::stop_token& stop);

  ShardCacheOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::string> failed_;  ///< the error of each command that has failed; guarded by the mutex
  std::condition_variable_any wished_;
  std::string wish_;  ///< the shard to fetch ahead; guarded by the mutex, like the next one
  ShardContent wish_content_;
  std::jthread ahead_;  ///< last: it uses the others
};

}  // namespace trireme::datasets
