// The order of system calls decides what is on disk after a crash at any point. This program's fsync() (sync_hook.cpp),
// rename() and renameat2() override the C library's, also for libtrireme; each call is recorded and passed on.
#include <ATen/ops/full.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <functional>

#include "core/base/files/files.h"
#include "core/checkpoint/train_state.h"
#include "tests/unit/checkpoint/folder.h"
#include "tests/unit/checkpoint/sync_hook.h"

namespace {

struct Call {
  std::string what;      ///< "sync" or "rename"
  std::string from, to;  ///< a sync has `from` alone
};
std::vector<Call>* recorded = nullptr;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
int rename(const char* from, const char* to) noexcept {
  if (recorded != nullptr) recorded->push_back({"rename", from, to});
  static const auto call = next<int (*)(const char*, const char*)>("rename");
  return call(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (recorded != nullptr) recorded->push_back({"rename", from, to});
  static const auto call = next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  return call(from_folder, from, to_folder, to, flags);
}
}

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<Call> calls_of(const std::function<void()>& action) {
  std::vector<Call> calls;
  recorded = &calls;
  const WithSyncHook hook([](const std::string& path) {
    recorded->push_back({"sync", path, ""});
    return 0;
  });
  action();
  recorded = nullptr;
  return calls;
}

/// The index of the call, or -1.
std::ptrdiff_t index_of(const std::vector<Call>& calls, const std::string& what, const std::string& path) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i].what == what && (what == "sync" ? calls[i].from : calls[i].to) == path)
      return static_cast<std::ptrdiff_t>(i);
  return -1;
}

/// A name must not refer to a file whose content is not on disk, nor be lost itself: a file's content is synced before
/// the file is renamed, and its folder after that.
void expect_synced_around(const std::vector<Call>& calls, const std::string& path) {
  const auto renamed = index_of(calls, "rename", path);
  ASSERT_GE(renamed, 0) << path << " was written in place";
  const auto synced = index_of(calls, "sync", calls[static_cast<std::size_t>(renamed)].from);
  EXPECT_TRUE(synced >= 0 && synced < renamed) << path << " got its name before its content was on disk";
  bool after = false;
  const auto folder = fs::path(path).parent_path().string();
  for (auto i = static_cast<std::size_t>(renamed); i < calls.size(); ++i)
    after = after || (calls[i].what == "sync" && calls[i].from == folder);
  EXPECT_TRUE(after) << folder << " was not synced after " << path << " got its name";
}

TEST(Durability, AFilesContentIsOnDiskBeforeItsName) {
  const TestFolder folder;
  for (int turn = 0; turn < 2; ++turn)  // a new file, then its replacement
    expect_synced_around(calls_of([&] { write_file(folder / "a", "content"); }), folder / "a");
}

TEST(Durability, ACheckpointIsPublishedAfterItsFilesAreSynced) {
  const TestFolder run;
  const std::vector<nn::Parameter> parameters{{"weight", at::full({2}, 0.5), shard::Placement::whole("weight", {2})}};
  CheckpointContents contents;
  contents.record.progress.global_step = 3;
  contents.weights = weights_of(parameters);
  const auto folder = run / "checkpoints/step-00000003", temporary = folder + ".tmp";
  for (int turn = 0; turn < 2; ++turn) {
    const auto calls = calls_of([&] { save_checkpoint(run.path(), contents, 1, alone()); });
    const auto published = index_of(calls, "rename", folder);
    ASSERT_GE(published, 0);
    for (const char* name : {"weights-00000-00.safetensors", "state.json", "config.toml", "manifest.json"}) {
      const auto path = temporary + "/" + name;
      expect_synced_around(calls, path);
      EXPECT_LT(index_of(calls, "rename", path), published) << name;
      if (std::string(name) != "manifest.json") {
        EXPECT_LT(index_of(calls, "rename", path), index_of(calls, "rename", temporary + "/manifest.json")) << name;
      }
    }
    const auto last_sync = index_of(calls, "sync", temporary);
    EXPECT_TRUE(last_sync >= 0 && last_sync < published) << "the folder's names are not on disk when it is published";
    EXPECT_EQ(calls.back().what + " " + calls.back().from, "sync " + (run / "checkpoints"));
  }
}

}  // namespace
}  // namespace trireme::checkpoint
