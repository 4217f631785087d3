// Which events a run's callbacks receive, in which order, and how they end a run.
#include "core/train/callback.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/train/run.h"
#include "core/train/run_folder.h"
#include "core/train/summary.h"
#include "tests/unit/data/folder.h"
#include "trireme.h"

namespace trireme::train {
namespace {

using data::testing_tools::bytes_of;
using data::testing_tools::Folder;

/// Records its events, and stops the run or fails at the given steps.
struct Recorder : RunCallback {
  std::string events;
  std::int64_t stop_after = 0, fail_at = 0;
  bool speaks = false;

  void add(const std::string& event) { events += (events.empty() ? "" : " ") + event; }
  void on_start(RunContext& run) override { add(fmt::format("start{}", run.state.at.global_step)); }
  void on_step_begin(RunContext& run) override {
    add(fmt::format("begin{}", run.state.at.global_step));
    if (fail_at > 0 && run.state.at.global_step == fail_at) throw DataError("a callback's error");
  }
  void on_step_end(RunContext& run, const StepEnd& step) override {
    add(fmt::format("end{}", run.state.at.global_step));
    EXPECT_EQ(step.batch.global_samples, 8);
    if (run.state.at.global_step == stop_after) run.stopped_by = "the recorder";
  }
  void on_log(RunContext&, const StepLog& log) override {
    add(fmt::format("log{}", log.at.global_step));
    EXPECT_GT(log.loss, 0);
    EXPECT_GT(log.flops.value_or(0), 0);
  }
  void on_evaluate(RunContext&, const Evaluation& evaluation) override {
    add(fmt::format("{}{}{}{}", evaluation.split, evaluation.weights, evaluation.epoch ? "*" : "",
                    evaluation.is_best ? "!" : ""));
  }
  void on_epoch_end(RunContext& run, const EpochEnd& epoch) override {
    add(fmt::format("epoch{}", epoch.epoch));
    EXPECT_GT(epoch.train_loss, 0);
    if (speaks) run.say("a line");
  }
  void on_message(RunContext&, const std::string& line) override { add(line == "a line" ? "line" : "?"); }
  void on_save(RunContext&, const std::string& checkpoint) override { add(checkpoint.substr(checkpoint.size() - 6)); }
  void on_finish(RunContext&, const RunResult& result) override {
    add(fmt::format("finish({})", result.stopped_by));
    EXPECT_GT(result.flops_per_s.value_or(0), 0);
  }
  void on_exception(const std::exception_ptr&) override { add("exception"); }
};

/// 42 samples without the last 2: five steps an epoch.
constexpr const char* kRun = R"([run]
device = "cpu"
checkpoint_every = 2
[model]
hidden_size = 16
num_layers = 1
num_heads = 2
intermediate_size = 32
patch_size = 8
[data]
name = "leaves"
images = 60
image_size = 16
[train]
epochs = 1
global_batch = 8
drop_last = true
)";

/// Trains with two recorders, one of them by Kinds, and returns the events of both.
std::string events_of(const Folder& folder, std::int64_t stop_after, std::int64_t fail_at,
                      const std::vector<std::string>& overrides = {}) {
  const auto recorder = std::make_shared<Recorder>(), other = std::make_shared<Recorder>();
  recorder->stop_after = stop_after;
  recorder->fail_at = fail_at;
  recorder->speaks = true;
  auto root = config::parse_text(kRun, "a.toml");
  config::apply_override(root, "run.dir=" + folder.path("run"));
  for (const auto& assignment : overrides) config::apply_override(root, assignment);
  auto kinds = builtin_kinds();
  kinds.callbacks.emplace_back([&] { return other; });
  const auto world = comm::World::start(comm::detect(), {.device = "cpu"});
  auto prepared = prepare(from_table(std::move(root), std::move(kinds)), world->info(), "", Log(1));
  auto run_folder = open_run(prepared);
  testing::internal::CaptureStdout();
  try {
    run_training(std::move(prepared), *world, std::move(run_folder), {.callbacks = {recorder}});
  } catch (const DataError&) {
    recorder->add("thrown");
    other->add("thrown");
  }
  testing::internal::GetCapturedStdout();
  EXPECT_TRUE(fail_at > 0 || recorder->events == other->events) << other->events;
  return recorder->events;
}

TEST(RunCallbacks, AreCalledInTheOrderOfARun) {
  const Folder folder;
  EXPECT_EQ(events_of(folder, 0, 0),
            "start0 begin0 log1 end1 begin1 log2 end2 000002 begin2 log3 end3 begin3 log4 end4 000004 begin4 log5 end5 "
            "validation*! epoch1 line 000005 testlast finish()");
}

TEST(RunCallbacks, StopARunAfterTheirStep) {
  const Folder folder;
  EXPECT_EQ(events_of(folder, 3, 0),
            "start0 begin0 log1 end1 begin1 log2 end2 000002 begin2 log3 end3 validation*! epoch1 line 000003 testlast "
            "finish(the recorder)");
  // A resumed run continues from there, and is stopped by its own limit.
  EXPECT_EQ(events_of(folder, 0, 0, {"run.resume=auto", "train.max_steps=4"}),
            "start3 begin3 log4 end4 validation* epoch1 line 000004 testlast testbest "
            "finish(train.max_steps)");
}

TEST(RunCallbacks, EndARunWithTheirError) {
  const Folder folder;
  EXPECT_EQ(events_of(folder, 0, 1, {"run.keep_checkpoints=0", "run.checkpoint_every=0", "run.rank_logs=false"}),
            "start0 begin0 log1 end1 begin1 exception thrown");
}

}  // namespace
}  // namespace trireme::train
