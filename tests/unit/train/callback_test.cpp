// Which events a run's callbacks receive, in which order, and how they end a run.
#include "core/train/callback.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/train/report/summary.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train {
namespace {

using data::testing_tools::Folder;
using testing_tools::kFiveSteps;
using testing_tools::setup_of;
using testing_tools::train_small;

/// The steps after which a recorder stops the run or fails; 0: none.
struct Interruption {
  std::int64_t stop_after = 0, stop_when_saved = 0, fail_at = 0;
};

/// Records its events, and interrupts the run.
struct Recorder : RunCallback {
  std::string events;
  Interruption when{};
  bool speaks = false;

  void add(const std::string& event) { events += (events.empty() ? "" : " ") + event; }
  void on_start(RunContext& run) override { add(fmt::format("start{}", run.state.at.global_step)); }
  void on_step_begin(RunContext& run) override {
    add(fmt::format("begin{}", run.state.at.global_step));
    if (when.fail_at > 0 && run.state.at.global_step == when.fail_at) throw DataError("a callback's error");
  }
  void on_step_end(RunContext& run, const StepEnd& step) override {
    add(fmt::format("end{}", run.state.at.global_step));
    EXPECT_EQ(step.batch.global_samples, 8);
    if (run.state.at.global_step == when.stop_after) run.stopped_by = "the recorder";
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
  void on_message(RunContext&, const std::string& line) override { add(line == "a line" ? "line" : line.substr(0, 4)); }
  void on_summary(RunContext&, nlohmann::json& summary) override {
    add("summary");
    EXPECT_TRUE(summary.contains("measured"));
  }
  void on_save(RunContext& run, const std::string& checkpoint) override {
    add(checkpoint.substr(checkpoint.size() - 6));
    if (run.state.at.global_step == when.stop_when_saved) run.stopped_by = "the recorder";
  }
  void on_finish(RunContext&, const RunResult& result) override {
    add(fmt::format("finish({})", result.stopped_by));
    EXPECT_GT(result.flops_per_s.value_or(0), 0);
  }
  void on_exception(const std::exception_ptr&) override { add("exception"); }
};

/// Trains with two recorders, one of them by Kinds, and returns the events of both.
std::string events_of(const Folder& folder, const Interruption& when, const std::vector<std::string>& more = {}) {
  const auto recorder = std::make_shared<Recorder>(), other = std::make_shared<Recorder>();
  recorder->when = when;
  recorder->speaks = true;
  std::vector<std::string> assignments{"run.dir=" + folder.path("run"), "run.checkpoint_every=2"};
  assignments.insert(assignments.end(), more.begin(), more.end());
  auto kinds = builtin_kinds();
  kinds.callbacks.emplace_back([&] { return other; });
  try {
    train_small(setup_of(kFiveSteps, assignments, 1, "", std::move(kinds)), {.callbacks = {recorder}});
  } catch (const DataError&) {
    recorder->add("thrown");
    other->add("thrown");
  }
  EXPECT_TRUE(when.fail_at > 0 || recorder->events == other->events) << other->events;
  return recorder->events;
}

TEST(RunCallbacks, AreCalledInTheOrderOfARun) {
  const Folder folder;
  EXPECT_EQ(events_of(folder, {}),
            "start0 begin0 log1 end1 begin1 log2 end2 000002 begin2 log3 end3 begin3 log4 end4 000004 begin4 log5 end5 "
            "validation*! epoch1 line 000005 testlast summary plan finish()");
}

TEST(RunCallbacks, StopARunAfterTheirStep) {
  const Folder folder;
  // The checkpoint precedes the evaluation that only the stop causes.
  EXPECT_EQ(events_of(folder, {.stop_after = 3}),
            "start0 begin0 log1 end1 begin1 log2 end2 000002 begin2 log3 end3 000003 validation*! epoch1 line testlast "
            "summary plan "
            "finish(the recorder)");
  // A resumed run continues from there as if it had not been stopped, and is stopped by its own limit.
  EXPECT_EQ(events_of(folder, {}, {"run.resume=auto", "train.max_steps=4"}),
            "start3 begin3 log4 end4 000004 validation*! epoch1 line testlast summary plan finish(train.max_steps)");
}

TEST(RunCallbacks, StopARunWhenItIsSaved) {
  const Folder folder;
  EXPECT_EQ(events_of(folder, {.stop_when_saved = 2}),
            "start0 begin0 log1 end1 begin1 log2 end2 000002 validation*! epoch1 line testlast summary plan finish(the "
            "recorder)");
}

TEST(RunCallbacks, EndARunWithTheirError) {
  const Folder folder;
  EXPECT_EQ(
      events_of(folder, {.fail_at = 1}, {"run.keep_checkpoints=0", "run.checkpoint_every=0", "run.rank_logs=false"}),
      "start0 begin0 log1 end1 begin1 exception thrown");
}

/// Delays a run at some steps, and stops it.
struct Delays : RunCallback {
  std::map<std::int64_t, double> seconds_after;  ///< that the next step takes longer, by the steps done before it
  double seconds_of_save = 0, third_step = 0;
  std::int64_t stop_after = 0;

  static void wait(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  void on_step_begin(RunContext& run) override { wait(seconds_after[run.state.at.global_step]); }
  void on_save(RunContext&, const std::string&) override { wait(seconds_of_save); }
  void on_log(RunContext&, const StepLog& log) override {
    if (log.at.global_step == 3) third_step = log.seconds;
  }
  void on_step_end(RunContext& run, const StepEnd&) override {
    if (run.state.at.global_step == stop_after) run.stopped_by = "the test";
  }
};

// Neither a checkpoint nor the warm-up after a resume within an epoch counts as the time of a step.
TEST(RunCallbacksTime, IsThatOfStepsAlone) {
  const Folder folder;
  const std::vector<std::string> assignments{"run.dir=" + folder.path("run"), "run.checkpoint_every=2",
                                             "train.epochs=100", "run.resume=auto"};
  const auto saves = std::make_shared<Delays>(), resumes = std::make_shared<Delays>();
  saves->stop_after = 3;
  saves->seconds_of_save = 1;
  train_small(setup_of(kFiveSteps, assignments), {.callbacks = {saves}});
  EXPECT_GT(saves->third_step, 0);
  EXPECT_LT(saves->third_step, 1);

  resumes->stop_after = 5;
  resumes->seconds_after = {{3, 1.5}, {4, 0.15}};  // the bar is redrawn every 100 ms
  const auto text =
      train_small(setup_of(kFiveSteps, assignments), {.terminal = {.columns = 120}, .callbacks = {resumes}});
  const std::regex left("5/5 .* ([0-9]+):([0-9]+):([0-9]+) left");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, left)) << text;
  EXPECT_LT(60 * std::stoi(found[1]) + std::stoi(found[2]), 10) << "minutes for 495 steps: " << text;
}

}  // namespace
}  // namespace trireme::train
