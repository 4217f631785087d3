// A training whose checkpoints are saved in the background: what it says and records, how it ends, and what it does
// when one cannot be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/checkpoint/checkpoint_folders.h"
#include "core/train/stop.h"
#include "tests/file_limit.h"
#include "tests/unit/checkpoint/folder.h"
#include "tests/unit/checkpoint/sync_hook.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::bytes_of;
using checkpoint::TestFolder;
using testing_tools::kFiveSteps;
using testing_tools::setup_of;
using testing_tools::train_small;

std::vector<nlohmann::json> events_of(const std::string& run, const std::string& kind) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(bytes_of(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (auto json = nlohmann::json::parse(line); json.value("event", "") == kind) out.push_back(std::move(json));
  return out;
}

std::vector<std::string> background(const std::string& dir, std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {"run.dir=" + dir, "run.async_save=true", "run.checkpoint_every=2", "run.keep_checkpoints=9"});
  return more;
}

struct Saves : RunCallback {
  std::vector<std::string> saved;
  void on_save(RunContext& /*run*/, const std::string& folder) override {
    EXPECT_TRUE(fs::exists(folder + "/manifest.json")) << folder;
    saved.push_back(fs::path(folder).filename());
  }
};

TEST(TrainerSaves, EachIsCompleteAndRecorded) {
  const TestFolder folder;
  const auto saves = std::make_shared<Saves>();
  const auto dir = folder / "run";
  const auto shown = train_small(setup_of(kFiveSteps, background(dir, {"train.epochs=3"})), {.callbacks = {saves}});
  const std::vector<std::string> all{"step-00000002", "step-00000004", "step-00000005",
                                     "step-00000006", "step-00000008", "step-00000010",
                                     "step-00000012", "step-00000014", "step-00000015"};
  EXPECT_EQ(saves->saved, all);
  EXPECT_EQ(names_in(dir + "/checkpoints"), all);
  EXPECT_NE(shown.find("\nsaves    in the background, from a copy in host memory: "), std::string::npos) << shown;
  const auto events = events_of(dir, "save");
  ASSERT_EQ(events.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(events[i].at("step"), checkpoint::step_of_folder(all[i]));
    EXPECT_GT(events[i].at("held_s"), 0.0);
    EXPECT_GT(events[i].at("write_s"), 0.0);
    EXPECT_GT(events[i].at("bytes"), 10000);
  }
  const auto plain = folder / "plain";
  train_small(setup_of(kFiveSteps, {"run.dir=" + plain, "train.epochs=3"}));
  EXPECT_EQ(bytes_of(plain + "/model/model.safetensors"), bytes_of(dir + "/model/model.safetensors"));
  EXPECT_EQ(events_of(plain, "save").size(), 3U) << "saves at once are recorded too";
}

/// From the first complete checkpoint, of step 2, to the end of step 7 no file may be larger than 8 KB: tensors cannot
/// be written then, but their folder and lines of metrics.jsonl can. The save of step 4 fails, and that of step 6
/// unless the machine is slow.
struct LimitFiles : Saves {
  std::optional<tests::FileLimit> limit;
  void on_save(RunContext& run, const std::string& folder) override {
    Saves::on_save(run, folder);
    if (saved.size() == 1) limit.emplace(8 << 10);
  }
  void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
    if (run.state.at.global_step == 7) limit.reset();
  }
  void on_exception(const std::exception_ptr& /*error*/) override { limit.reset(); }
};

TEST(TrainerSaves, GoOnOrStopWhenOneCannotBeWritten) {
  const TestFolder folder;
  for (const std::string policy : {"continue", "stop"}) {
    const auto limit = std::make_shared<LimitFiles>();
    const auto dir = folder / policy;
    const auto sets = background(dir, {"run.on_save_error=" + policy, "train.global_batch=4", "train.drop_last=false"});
    const auto run = [&] { train_small(setup_of(kFiveSteps, sets), {.callbacks = {limit}}); };
    if (policy == "stop") {
      try {
        run();
        ADD_FAILURE() << "the run went on";
      } catch (const CheckpointError& error) {
        EXPECT_NE(std::string(error.what())
                      .find("step-00000004.tmp/weights-00000-00.safetensors: cannot be written: "
                            "File too large"),
                  std::string::npos)
            << error.what();
      }
      EXPECT_EQ(names_in(dir + "/checkpoints"), (std::vector<std::string>{"step-00000002"}));
      EXPECT_EQ(limit->saved, (std::vector<std::string>{"step-00000002"}));
      continue;
    }
    run();
    std::map<std::int64_t, int> ends;
    for (const auto& error : events_of(dir, "save_error")) ++ends[error.at("step")];
    EXPECT_EQ(ends[4], 1) << "said once";
    EXPECT_LE(ends[6], 1);
    EXPECT_EQ(ends.size(), 2U) << "no other save has failed";
    for (const auto& name : limit->saved) ++ends[checkpoint::step_of_folder(name)];
    EXPECT_EQ(ends, (std::map<std::int64_t, int>{{2, 1}, {4, 1}, {6, 1}, {8, 1}, {10, 1}, {11, 1}}));
    EXPECT_EQ(names_in(dir + "/checkpoints"), limit->saved);
  }
}

/// A callback whose error ends the run while a checkpoint is in flight, or just after.
struct FailAt : Saves {
  void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
    if (run.state.at.global_step == 3) throw DataError("a broken sample");
  }
};

TEST(TrainerSaves, AnErrorLeavesNoPartOfACheckpoint) {
  const TestFolder folder;
  const auto dir = folder / "run";
  EXPECT_THROW(train_small(setup_of(kFiveSteps, background(dir)), {.callbacks = {std::make_shared<FailAt>()}}),
               DataError);
  for (const auto& name : names_in(dir + "/checkpoints")) EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

/// The error of FailAt. The disk answers when it is said.
struct FailOnAHungDisk : FailAt {
  std::promise<void> said;
  void on_exception(const std::exception_ptr& /*error*/) override { said.set_value(); }
};

TEST(TrainerSaves, AnErrorIsSaidBeforeAHungDiskIsWaitedFor) {
  const TestFolder folder;
  const auto fails = std::make_shared<FailOnAHungDisk>();
  std::atomic<int> in_time = 0;
  const checkpoint::WithSyncHook hook([&in_time, said = fails->said.get_future().share()](const std::string& path) {
    if (path.find("/state.json") != path.npos && said.wait_for(std::chrono::seconds(20)) == std::future_status::ready)
      ++in_time;
    return 0;
  });
  EXPECT_THROW(train_small(setup_of(kFiveSteps, background(folder / "run")), {.callbacks = {fails}}), DataError);
  EXPECT_EQ(in_time, 1);
  EXPECT_EQ(names_in(folder / "run/checkpoints"), std::vector<std::string>());
}

/// A stop by a signal that arrives in a step after one that began a save.
struct SignalAt : Saves {
  void on_step_begin(RunContext& run) override {
    if (run.state.at.global_step == 4) raise(SIGTERM);
  }
};

TEST(TrainerSaves, ASignalWaitsForAllOfThem) {
  const TestFolder folder;
  const auto dir = folder / "run";
  const auto signal_at = std::make_shared<SignalAt>();
  std::string saved;
  try {
    train_small(setup_of(kFiveSteps, background(dir)), {.callbacks = {signal_at}});
    ADD_FAILURE() << "not stopped";
  } catch (const StoppedBySignal& stopped) {
    saved = stopped.saved();
  }
  EXPECT_EQ(names_in(dir + "/checkpoints"), signal_at->saved);
  ASSERT_FALSE(signal_at->saved.empty());
  EXPECT_EQ(saved, dir + "/checkpoints/" + signal_at->saved.back());
  EXPECT_EQ(signal_at->saved.front(), "step-00000002");
  EXPECT_GT(checkpoint::step_of_folder(saved), 4) << "the step of the stop";
}

}  // namespace
}  // namespace trireme::train
