// Checkpoints that are saved in the background: the bytes of a save at once, although the tensors change meanwhile;
// every failure is reported and leaves nothing; the memory is that of one copy.
#include "core/checkpoint/background_saver.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <map>
#include <thread>

#include "tests/unit/checkpoint/folder.h"
#include "tests/unit/checkpoint/sync_hook.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Tensors of each kind that a run has; next() changes all of them in place, like an optimizer's step.
struct Changing {
  std::vector<shard::Slice> weights, optimizer, average;

  Changing() {
    const auto slice = [](const std::string& name, const at::Tensor& value) {
      return shard::Slice{shard::Placement::whole(name, value.sizes().vec()), value};
    };
    weights = {slice("layer.weight", at::arange(60, at::kFloat).view({5, 12})),
               slice("layer.bias", at::full({}, 0.5, at::kDouble)),
               slice("layer.turned", at::arange(12, at::kFloat).view({3, 4}).t()),
               slice("layer.empty", at::full({0, 3}, 1.0)),
               slice("bn.num_batches_tracked", at::full({}, 7, at::kLong)),
               slice("layer.half", at::full({7}, 1.5, at::kBFloat16))};
    for (const char* key : {"exp_avg", "exp_avg_sq", "step"})
      optimizer.push_back(slice(std::string("layer.weight.") + key, at::full({5, 12}, 0.25)));
    average = {slice("layer.weight", at::full({5, 12}, 0.125))};
  }
  void next() {
    for (auto* list : {&weights, &optimizer, &average})
      for (auto& [placement, value] : *list) value.add_(1);
  }
  [[nodiscard]] CheckpointContents contents(std::int64_t step, const std::string& best = "") const {
    CheckpointContents out;
    out.record.progress = {0, step, step, step};
    out.record.config = "[run]\n";
    out.weights = weights;
    out.optimizer = optimizer;
    out.average = average;
    out.texts = {{"config.json", "{}"}};
    out.most_file_bytes = 200;  // several files
    if (best.empty()) return out;
    out.best = best;
    out.best_digest = digest_file(best);
    return out;
  }
};

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& name : names_in(folder)) out[name] = bytes_of(folder + "/" + name);
  return out;
}

/// Goes on as a training does between its steps.
std::optional<SavedCheckpoint> advance_to_the_end(BackgroundSaver& saver) {
  std::optional<SavedCheckpoint> saved;
  while (!saved) {
    while (saver.is_busy() && !saver.has_failed()) std::this_thread::yield();
    saved = saver.advance(saver.has_failed());
  }
  return saved;
}

bool is_state(const std::string& path) { return path.find("/state.json") != path.npos; }

TEST(BackgroundSaver, WritesWhatTheTensorsWere) {
  const TestFolder at_once, background;
  for (const bool waits : {true, false}) {
    for (const auto* folder : {&at_once, &background}) write_file(*folder / "best", "the best so far");
    Changing t;
    const auto expected = files_in(save_checkpoint(at_once.path(), t.contents(4, at_once / "best"), 2, alone()));
    ASSERT_GT(expected.size(), 10U);
    BackgroundSaver saver(alone());
    std::promise<void> changed;
    // The first file that the thread writes has to wait: no tensor is read before it.
    const WithSyncHook hook([held = changed.get_future().share()](const std::string& path) {
      if (is_state(path)) held.wait();
      return 0;
    });
    saver.begin(background.path(), t.contents(4, background / "best"), 2);
    EXPECT_TRUE(saver.is_busy());
    t.next();
    write_file(background / "best", "better ones");
    changed.set_value();
    const auto saved = waits ? saver.wait() : *advance_to_the_end(saver);
    EXPECT_TRUE(saver.is_idle());
    EXPECT_EQ(saved.step, 4);
    EXPECT_EQ(saved.folder, background / "checkpoints/step-00000004");
    EXPECT_EQ(files_in(saved.folder), expected);
    std::uint64_t bytes = 0;
    for (const auto& [name, content] : expected)
      if (name != kManifest) bytes += content.size();
    EXPECT_EQ(saved.bytes, bytes);
  }
}

TEST(BackgroundSaver, UsesTheMemoryOfOneCopyAgain) {
  const TestFolder run;
  Changing t;
  BackgroundSaver saver(alone());
  saver.reserve(t.contents(0));
  const auto bytes = saver.capacity();
  std::int64_t needed = 0;
  for (const auto* list : {&t.weights, &t.optimizer, &t.average})
    for (const auto& slice : *list) needed += static_cast<std::int64_t>(slice.value.nbytes());
  EXPECT_GE(bytes, needed);
  EXPECT_LT(bytes, needed + 64 * 11) << "each begins at a multiple of 64 bytes";
  for (const int step : {1, 2, 3}) {
    saver.begin(run.path(), t.contents(step), 2);
    t.next();
    EXPECT_EQ(advance_to_the_end(saver)->step, step);
    EXPECT_EQ(saver.capacity(), bytes);
  }
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000002", "step-00000003"}));
}

// A fault in each sync of a save in turn. After the last one the checkpoint has its name.
TEST(BackgroundSaver, AFailureAtAnyPointIsReportedAndLeavesNothing) {
  const TestFolder run;
  Changing t;
  const auto old = save_checkpoint(run.path(), t.contents(1), 1, alone());
  const auto before = files_in(old);
  int failures = 0;
  for (int fail_at = 0;; ++fail_at) {
    BackgroundSaver saver(alone());
    std::atomic<int> syncs = 0;
    bool failed = false;
    std::string warning;
    {
      const WithSyncHook hook([&](const std::string&) { return syncs++ == fail_at ? ENOSPC : 0; });
      try {
        saver.begin(run.path(), t.contents(2), 1);
        warning = advance_to_the_end(saver)->warning;
      } catch (const CheckpointError& error) {
        failed = true;
        EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
      }
      EXPECT_TRUE(saver.is_idle());
    }
    if (syncs <= fail_at) {
      EXPECT_FALSE(failed);
      EXPECT_EQ(warning, "");
      break;
    }
    ++failures;
    const auto names = names_in(run / "checkpoints");
    EXPECT_EQ(files_in(old), before);
    EXPECT_EQ(failed, names.size() == 1) << "sync " << fail_at;
    if (names.size() == 2) {  // the old one is kept beside it, because the new name may not be on the disk
      EXPECT_NO_THROW(Checkpoint(run / "checkpoints/step-00000002"));
      EXPECT_EQ(warning, run / "checkpoints: cannot be synced to disk: No space left on device");
      fs::remove_all(run / "checkpoints/step-00000002");
    } else {
      EXPECT_EQ(names, (std::vector<std::string>{"step-00000001"})) << "sync " << fail_at;
    }
  }
  EXPECT_GT(failures, 20);
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000002"}));
}

// The older one may be gone by then.
TEST(BackgroundSaver, WhatIsPublishedIsNotGivenUp) {
  const TestFolder run;
  Changing t;
  save_checkpoint(run.path(), t.contents(1), 1, alone());
  BackgroundSaver saver(alone());
  const auto wait = [&] {
    while (saver.is_busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  saver.begin(run.path(), t.contents(2), 1);
  wait();
  EXPECT_FALSE(saver.advance(false));
  wait();
  saver.abandon();
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000002"}));
  EXPECT_NO_THROW(Checkpoint(run / "checkpoints/step-00000002"));
}

TEST(BackgroundSaver, WhatIsGivenUpLeavesNothing) {
  const TestFolder run;
  Changing t;
  const auto old = save_checkpoint(run.path(), t.contents(1), 9, alone());
  {
    BackgroundSaver saver(alone());
    std::promise<void> release;
    const WithSyncHook hook([held = release.get_future().share()](const std::string& path) {
      if (is_state(path)) held.wait();
      return 0;
    });
    saver.begin(run.path(), t.contents(2), 9);
    EXPECT_TRUE(fs::exists(run / "checkpoints/step-00000002.tmp"));
    std::thread later([&] { release.set_value(); });
    saver.abandon();
    later.join();
    EXPECT_TRUE(saver.is_idle());
  }
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000001"}));
}

}  // namespace
}  // namespace trireme::checkpoint
