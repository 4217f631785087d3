#include "core/comm/flight/folder.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/base/environment.h"
#include "core/comm/flight/reader.h"
#include "core/comm/flight/recorder.h"

namespace trireme::comm::flight {
namespace {

constexpr const char* kPrefix = "trireme-flight";

/// Memory first: the kernel may hold up a store to a page of a disk's file while it writes the page out.
std::string root() { return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : temporary_folder(); }

/// Of the folders of this user's runs without a parent, whose records this version can read.
std::string shared_prefix() { return fmt::format("{}-v{}-{}-", kPrefix, kVersion, geteuid()); }

/// The folder that the ranks of a host share without a parent.
std::string shared_folder(const std::string& job) {
  return fmt::format("{}/{}{:016x}", root(), shared_prefix(), std::hash<std::string>{}(job));
}

/// Whether the rank's process runs, or may: one of another namespace cannot be seen.
bool may_run(const RankView& rank) {
  return rank.record.pid_namespace != pid_namespace() ||
         process_state(rank.record.pid, rank.record.process_start) != ProcessState::gone;
}

/// Whether some process of the folder still runs, or the folder is so new that its first one may not have come.
bool in_use(const std::string& path) {
  constexpr std::time_t kNew = 60;  // seconds
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || time(nullptr) - found.st_mtime < kNew) return true;
  const auto ranks = read_ranks(path);
  return std::any_of(ranks.begin(), ranks.end(), may_run);
}

/// Removes the shared folders of this user's earlier runs all of whose ranks were killed at once.
void remove_abandoned(const std::string& in) {
  constexpr std::size_t kDigits = 16;
  const auto own = shared_prefix();
  std::error_code none;
  for (std::filesystem::directory_iterator entry(in, none), end; !none && entry != end; entry.increment(none)) {
    const auto path = entry->path().string(), name = entry->path().filename().string();
    const bool is_shared = name.starts_with(own) && name.size() == own.size() + kDigits;
    if (is_shared && is_own_folder(path) && !in_use(path)) remove_folder(path);
  }
}

}  // namespace

ParentFolder::ParentFolder() : folder_(root(), kPrefix) { remove_abandoned(root()); }

std::string rank_folder(const LaunchInfo& info) {
  if (info.size == 1) return "";
  if (const auto given = environment(kFolderVariable); !given.empty() && is_own_folder(given)) return given;
  const auto name = info.job.empty() ? std::to_string(getppid()) : info.job;
  const auto path = shared_folder(name);
  if (mkdir(path.c_str(), 0700) == 0)
    remove_abandoned(root());
  else if (errno != EEXIST || !is_own_folder(path))
    return "";
  return path;
}

void remove_left_over(const std::string& folder) {
  bool has_begun = false;
  for (const auto& rank : read_ranks(folder)) {
    if (may_run(rank))
      has_begun = true;
    else
      unlink(fmt::format("{}/{}{}", folder, kRankFile, rank.record.rank).c_str());
  }
  if (!has_begun) unlink(fmt::format("{}/{}", folder, kControlFile).c_str());
}

void remove_if_all_ended(const std::string& folder, int ranks) {
  const auto all = read_ranks(folder);
  if (static_cast<int>(all.size()) == ranks &&
      std::all_of(all.begin(), all.end(), [](const RankView& rank) { return rank.record.end == EndKind::normal; }))
    remove_folder(folder);
}

void remove_folder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace trireme::comm::flight
