// How ranks agree to stop, and what the signals do in one process.
#include "core/train/stop.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/files/files.h"
#include "core/data/dataset_wrapper.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/program.h"

namespace trireme::train {
namespace {

using namespace testing_tools;

TEST(PolledVote, CountsFromTheLagOn) {
  const auto world = comm::World::start({}, {.device = "cpu"});
  PolledVote vote(*world);
  const auto lag = Readback::lag(world->device());
  EXPECT_EQ(lag, 0);  // the answer is there at once
  const std::size_t late = 7;
  for (std::size_t call = 0; call < 20; ++call)
    EXPECT_EQ(vote.any(call == late || call > late + 2), call >= late + static_cast<std::size_t>(lag)) << call;
  EXPECT_EQ(Readback::lag(at::kCUDA), 4);
}

/// How a child process ends that does this.
int status_of(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(StopSignals, TheFirstIsNotedAndTheNextEndsTheProcess) {
  struct Row {
    const char* what;
    std::function<void()> body;
    int exit_code;  // -n: signal n ended the process
    bool within_a_second = false;
  };
  const auto raise_and_check = [](int number) {
    raise(number);
    if (StopSignals::received() != number) _exit(1);
  };
  const Row rows[] = {
      {"one of each kind is noted",
       [&] {
         for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
           const StopSignals signals(0);
           if (StopSignals::received() != 0) _exit(2);
           raise_and_check(number);
         }
       },
       0},
      {"the same one twice at once, from a launcher and a terminal",
       [&] {
         const StopSignals signals(0);
         raise_and_check(SIGINT);
         raise(SIGINT);
       },
       0, true},
      {"another one later",
       [&] {
         const StopSignals signals(0);
         raise_and_check(SIGTERM);
         usleep(1'100'000);
         raise(SIGINT);
         _exit(3);
       },
       128 + SIGINT},
      {"no end within the grace",
       [&] {
         close(STDERR_FILENO);
         const StopSignals signals(1);
         raise_and_check(SIGTERM);
         for (int i = 0; i < 600; ++i) usleep(100'000);
         _exit(3);
       },
       128 + SIGTERM},
      {"the handlers before it are restored",
       [&] {
         { const StopSignals signals(0); }
         raise(SIGTERM);
       },
       -SIGTERM},
      {"an ignored signal stays ignored",
       [&] {
         for (const int number : {SIGINT, SIGHUP}) signal(number, SIG_IGN);
         const StopSignals signals(0);
         for (const int number : {SIGINT, SIGHUP}) raise(number);
         if (StopSignals::received() != 0) _exit(1);
       },
       0},
  };
  for (const auto& row : rows) {
    int status = 0;
    double seconds = 0;
    int tries = 0;
    do {  // again where the machine has held the process up
      const auto begin = std::chrono::steady_clock::now();
      status = status_of(row.body);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    } while (row.within_a_second && seconds > 1 && ++tries < 20);
    EXPECT_EQ(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), row.exit_code) << row.what;
  }
}

/// Where in a run of 12 steps, in 2 epochs, the signal comes.
enum class Phase { step, first_step, data, evaluation, last_evaluation, epoch_end, save, test, last_step };

/// Raises SIGTERM once, in one phase.
struct RaiseOnce : RunCallback {
  explicit RaiseOnce(Phase in) : phase(in) {}
  Phase phase;
  bool raised = false;
  std::int64_t steps = 0, evaluations = 0;

  void raise_in(bool here) {
    if (!here || raised) return;
    raised = true;
    raise(SIGTERM);
  }
  void on_step_begin(RunContext& run) override {
    steps = run.state.at.global_step;
    raise_in((phase == Phase::first_step && steps == 0) || (phase == Phase::step && steps == 4) ||
             (phase == Phase::last_step && steps == 11));
  }
  void on_evaluate(RunContext& /*run*/, const Evaluation& /*evaluation*/) override { ++evaluations; }
  void on_epoch_end(RunContext& /*run*/, const EpochEnd& /*epoch*/) override { raise_in(phase == Phase::epoch_end); }
  void on_save(RunContext& run, const std::string& /*checkpoint*/) override {
    raise_in(phase == Phase::save && run.state.at.global_step == 8);
  }
};

/// Raises SIGTERM before the last step of the first epoch.
struct RaiseInTheFirstEpochsEnd : Events {
  void on_step_end(RunContext& run, const StepEnd& /*step*/) override {
    if (run.state.at.global_step == 5) raise(SIGTERM);
  }
};

// A run without evaluations has nothing left to do in an epoch that is complete when it is stopped.
TEST(StopOnRequest, EachEpochEndsOnce) {
  const data::testing_tools::Folder folder;
  const Program program;
  auto arguments = Program::arguments(folder.path("run"));
  arguments.eval_strategy = Strategy::no;
  arguments.stop_on_signals = true;
  arguments.resume_from_checkpoint = "auto";
  std::vector<std::int64_t> ended;
  for (const bool stops : {true, false}) {
    const auto events = stops ? std::make_shared<RaiseInTheFirstEpochsEnd>() : std::make_shared<Events>();
    shown_by([&] {
      Trainer trainer(*program.world, arguments, program.inputs({events}));
      if (stops)
        EXPECT_THROW(trainer.train(), StoppedBySignal);
      else
        trainer.train();
    });
    for (const auto& epoch : events->epochs) ended.push_back(epoch.epoch);
  }
  EXPECT_EQ(ended, (std::vector<std::int64_t>{1, 2}));
}

/// Raises it when a sample is read.
class RaisingReads final : public data::DatasetWrapper {
 public:
  RaisingReads(std::shared_ptr<data::Dataset> inner, std::shared_ptr<RaiseOnce> by, Phase phase,
               std::int64_t evaluations)
      : DatasetWrapper(std::move(inner)), by_(std::move(by)), phase_(phase), evaluations_(evaluations) {}
  std::optional<data::Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    by_->raise_in(by_->phase == phase_ && by_->evaluations == evaluations_);
    return DatasetWrapper::get(index, epoch, augment);
  }
  std::optional<data::Sample> get_with(const std::vector<std::string>& /*inputs*/, std::int64_t index,
                                       std::int64_t epoch, bool augment) override {
    return get(index, epoch, augment);
  }
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }  // they would be read past this one

 private:
  std::shared_ptr<RaiseOnce> by_;
  Phase phase_;
  std::int64_t evaluations_;
};

/// The lines of metrics.jsonl without their times, the last one of each step, kind and split.
std::map<std::string, std::string> numbers_in(const std::string& dir) {
  std::map<std::string, std::string> out;
  std::istringstream lines(read_file(dir + "/metrics.jsonl"));
  for (std::string text; std::getline(lines, text);) {
    auto line = nlohmann::json::parse(text);
    if (line.at("kind") == "event") continue;
    for (const auto* varies :
         {"time", "seconds", "epoch_seconds", "samples_per_s", "data_wait", "worker_samples_per_s", "flops_per_s"})
      line.erase(varies);
    out[fmt::format("{} {} {}", line.at("kind").dump(), line.value("split", ""), line.at("step").dump())] = line.dump();
  }
  return out;
}

// Stopped in any phase, a run is saved, and the next start makes what was left out: its weights and all its numbers are
// those of a run that was never stopped.
TEST(StopOnRequest, InEveryPhaseTheRunGoesOnAsIfItHadNotStopped) {
  const data::testing_tools::Folder folder;
  const Program program;
  const auto train = [&](const std::string& dir, const std::shared_ptr<RaiseOnce>& by) {
    auto arguments = Program::arguments(dir);
    arguments.resume_from_checkpoint = "auto";
    arguments.stop_on_signals = true;
    arguments.eval_strategy = Strategy::steps;
    arguments.eval_steps = 3;
    arguments.save_strategy = Strategy::steps;
    arguments.save_steps = 4;
    auto inputs = program.inputs({by});
    inputs.test = program.data.test;
    const auto around = [&](std::shared_ptr<data::Dataset>& data, Phase phase, std::int64_t evaluations) {
      data = std::make_shared<RaisingReads>(data, by, phase, evaluations);
    };
    around(inputs.train, Phase::data, 1);
    around(inputs.eval, Phase::evaluation, 1);
    around(inputs.eval, Phase::last_evaluation, 3);
    around(inputs.test, Phase::test, 4);
    shown_by([&] { Trainer(*program.world, arguments, inputs).train(); });
  };
  const auto straight = folder.path("straight");
  const auto none = std::make_shared<RaiseOnce>(Phase::step);
  none->raised = true;
  train(straight, none);
  ASSERT_EQ(none->evaluations, 5) << "four, and the test";
  for (int i = 0; i <= static_cast<int>(Phase::last_step); ++i) {
    const auto dir = folder.path("stopped" + std::to_string(i));
    const auto by = std::make_shared<RaiseOnce>(static_cast<Phase>(i));
    try {
      train(dir, by);
      ADD_FAILURE() << "phase " << i << " was not stopped; raised: " << by->raised;
    } catch (const StoppedBySignal& stopped) {
      EXPECT_EQ(stopped.signal(), SIGTERM);
      EXPECT_TRUE(std::filesystem::exists(stopped.saved() + "/manifest.json")) << "phase " << i;
    }
    EXPECT_FALSE(std::filesystem::exists(dir + "/summary.json")) << "phase " << i;
    train(dir, by);
    EXPECT_EQ(read_file(straight + "/model/model.safetensors"), read_file(dir + "/model/model.safetensors"))
        << "phase " << i;
    EXPECT_EQ(numbers_in(straight), numbers_in(dir)) << "phase " << i;
  }
}

}  // namespace
}  // namespace trireme::train
