// TrainingLoop: the loop of a training, and the only one there is (trainer.h). What else happens in a run is in its
// evaluations (run_evaluations.h), its saves (run_saves.h), its watch (run_watch.h) and its callbacks (callback.h), and
// its end in finish.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>

#include "core/resume/run_folder.h"
#include "core/train/callback.h"
#include "core/train/readback.h"
#include "core/train/report/flop_rate.h"
#include "core/train/report/step_clock.h"
#include "core/train/report/summary.h"
#include "core/train/run_evaluations.h"
#include "core/train/run_saves.h"
#include "core/train/run_watch.h"

namespace trireme::train {

class TrainingLoop {
 public:
  TrainingLoop(RunSetup setup, comm::World& world, std::unique_ptr<RunFolder> folder, Callbacks callbacks)
      : run_(std::move(setup), world, std::move(folder), std::move(callbacks)) {}

  /// Its model exists after boost().
  RunContext& run() { return run_; }
  void boost();
  RunResult train();
  RunEvaluations& evaluations() { return evaluations_; }

 private:
  using Clock = std::chrono::steady_clock;

  // The run, in the order of its parts.
  void train_until_the_end();
  void start();
  void train_epoch();
  void train_step(const data::StepBatch& batch);
  void leave_out_step();
  void read_back(const TrainStep& step, const data::StepBatch& batch, StepLog log);
  void finish_steps();
  RunResult end();
  [[noreturn]] void throw_stopped();
  void tell_callbacks(const std::exception_ptr& error);

  [[nodiscard]] EpochEnd epoch_end() const;
  [[nodiscard]] bool is_save_due() const { return run_.is_due(options().run.checkpoint_every); }
  [[nodiscard]] bool is_epoch_done() const {
    return run_.state.at.step_in_epoch == run_.boosted.loader->steps_per_epoch();
  }
  [[nodiscard]] const RunConfig& options() const { return run_.setup.config; }

  RunContext run_;
  StepClock clock_;
  RunSaves saves_{run_, clock_};
  RunWatch watch_{run_, saves_};
  RunEvaluations evaluations_{run_, saves_};
  Readback readback_;
  FlopRate flop_rate_{[this] { return run_.setup.model.source().model; }};
  std::optional<RunResult> result_;
  bool tuned_ = false;
  std::int64_t local_samples_ = 0;
  Clock::time_point begin_;
  /// The epoch in progress, or the part of it that is trained here.
  struct {
    Clock::time_point begin{};
    std::int64_t elements = 0, padding = 0;  ///< of this rank's inputs
  } epoch_;
};

}  // namespace trireme::train
