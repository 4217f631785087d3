// What this program's fsync() (sync_hook.cpp) calls first: a test lets a file wait there, or fail.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace trireme::checkpoint {

/// Returns 0, or the error of the sync. Set it while no other thread syncs.
inline std::function<int(const std::string& path)> sync_hook;

/// Sets it for a scope.
struct WithSyncHook {
  explicit WithSyncHook(std::function<int(const std::string&)> hook) { sync_hook = std::move(hook); }
  ~WithSyncHook() { sync_hook = nullptr; }
  WithSyncHook(const WithSyncHook&) = delete;
  WithSyncHook& operator=(const WithSyncHook&) = delete;
};

}  // namespace trireme::checkpoint
