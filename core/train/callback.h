// RunCallback: code that joins a training run at its events. The loop (trainer.h) trains, evaluates, decides which
// evaluation is the best, and saves checkpoints and the best weights; callbacks show it, write metrics.jsonl, stop the
// training early or after its time limit, and write the timeline and the logs of the ranks. A program passes its own to
// a Trainer, and an extension adds a maker of its own to Kinds::callbacks. They are called after the built-in ones.
//
// Every rank calls each event but on_log(), on_message() and on_exception() at the same point of the run, and its
// callbacks in the same order, so that a callback may be collective there. What on_log() gets is the same on every
// rank, except times, and FLOPs, which only rank 0 has. An error that a callback throws ends the run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/resume/resume.h"
#include "core/setup/run_setup.h"
#include "core/train/evaluate.h"

namespace trireme::train {

class BestModel;
class RunCallback;
class RunFolder;
struct RunResult;

using Callbacks = std::vector<std::shared_ptr<RunCallback>>;

/// A run and its parts. Callbacks see it from on_start() to on_finish().
struct RunContext {
  /// `folder`: null for the one that the configuration names.
  RunContext(RunSetup setup, comm::World& world, std::unique_ptr<RunFolder> folder, Callbacks callbacks);
  ~RunContext();
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  // In this order: the folder's resolved configuration has the plugin's options, and the booster takes the plugin.
  RunSetup setup;
  comm::World& world;
  const std::unique_ptr<RunFolder> folder;
  const std::unique_ptr<BestModel> best;
  Callbacks callbacks;  ///< they end after the model, which may take long, so that a signal is still heard
  Booster booster;
  Boosted boosted{};
  TrainerState state{};
  /// Of all ranks' devices together, in FLOP/s; unset if it is unknown. Without run.peak_tflops only on rank 0.
  std::optional<double> peak_flops{};
  std::string resumed_from{};   ///< the checkpoint; "" for a new run
  std::int64_t resumed_at = 0;  ///< optimizer step; 0: from the start
  /// Of host memory for background saves, on the rank that needs most; 0 without run.async_save.
  std::int64_t staging_bytes = 0;
  /// Empty while the training continues. A callback stops the training after this step by setting it, on every rank, to
  /// the key that requested the stop.
  std::string stopped_by{};

  /// The epoch in progress or just ended, from 1 before the first step, too.
  [[nodiscard]] std::int64_t epoch_number() const { return std::max<std::int64_t>(state.at.epoch_number(), 1); }
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] bool is_stopped_by_signal() const;
  [[nodiscard]] bool is_due(std::int64_t every) const { return every > 0 && state.at.global_step % every == 0; }
  /// Shows a line to the user: RunCallback::on_message() of each callback.
  void say(const std::string& line);
  /// Calls an event of each callback, in their order.
  template <class... Parameters, class... Arguments>
  void call(void (RunCallback::*event)(RunContext&, Parameters...), const Arguments&... arguments) {
    for (const auto& callback : callbacks) (callback.get()->*event)(*this, arguments...);
  }
};

/// A step whose work has been launched. On a GPU its numbers are not on the host yet, see StepLog.
struct StepEnd {
  const TrainStep& step;
  const data::StepBatch& batch;
  double seconds, data, communication;  ///< on this rank: StepTime (report/step_clock.h)
};

/// The numbers of a step, once they are on the host: on the CPU before its StepEnd, on a GPU some steps later.
struct StepLog {
  checkpoint::Progress at{};          ///< after the step
  double loss = 0, lr = 0;            ///< loss: mean over the global batch
  double weight = 0;                  ///< of the global batch: its samples or tokens, by Task::weight()
  double grad_norm = 0;               ///< before clipping
  bool skipped = false;               ///< nothing was changed, because a gradient was not finite
  std::int64_t samples = 0;           ///< of the global batch
  double seconds = 0, data_wait = 0;  ///< data_wait: the part of the time in which the loop waited for this data
  std::optional<double> flops{};      ///< of all ranks (core/train/report/flop_rate.h); only on rank 0
  VoteCounts votes{};
};

/// The end of an epoch, or of the part of it that was trained.
struct EpochEnd {
  std::int64_t epoch;  ///< from 1
  double train_loss;   ///< MeanLoss of its steps
  double seconds;      ///< its evaluation included
  /// Padding in the inputs whose size varies, on this rank; unset when none does.
  std::optional<double> padded_share = std::nullopt;
};

/// A finished evaluation. `trireme train` has one of the validation split at the end of each epoch and where the
/// training stops, and train.eval_every adds others; a program chooses by TrainingArguments::eval_strategy.
struct Evaluation {
  const char* split;  ///< "validation" or "test"
  const EvalResult& result;
  const Evaluated& of;       ///< the step and epoch of the evaluated weights
  std::string weights = "";  ///< of the test split: "last" or "best"
  /// Of the validation split: better than the one whose weights are kept, which are replaced after this event.
  bool is_best = false;
  std::optional<EpochEnd> epoch = std::nullopt;  ///< set at the end of an epoch
};

class RunCallback {
 public:
  virtual ~RunCallback() = default;
  /// Before the first step; a resumed run is restored.
  virtual void on_start(RunContext& /*run*/) {}
  virtual void on_step_begin(RunContext& /*run*/) {}
  /// After a step's work is launched and counted in RunContext::state. Reading a tensor of the step here would wait for
  /// the device in every step.
  virtual void on_step_end(RunContext& /*run*/, const StepEnd& /*step*/) {}
  /// Once for each step, in order: on the CPU before the step's on_step_end(), on a GPU with a later step's, or before
  /// the next evaluation or checkpoint. Not collective: ranks get here at different times, and on GPUs at different
  /// steps, so that a callback must not set stopped_by here.
  virtual void on_log(RunContext& /*run*/, const StepLog& /*log*/) {}
  /// With train.ema_decay the model has its averaged weights here.
  virtual void on_evaluate(RunContext& /*run*/, const Evaluation& /*evaluation*/) {}
  /// After the epoch's evaluation, if it has one.
  virtual void on_epoch_end(RunContext& /*run*/, const EpochEnd& /*epoch*/) {}
  /// After a checkpoint is complete; with run.async_save that is some steps after its own.
  virtual void on_save(RunContext& /*run*/, const std::string& /*checkpoint*/) {}
  /// Before summary.json is written: what the callback adds to it. Only rank 0's counts.
  virtual void on_summary(RunContext& /*run*/, nlohmann::json& /*summary*/) {}
  /// After summary.json is written.
  virtual void on_finish(RunContext& /*run*/, const RunResult& /*result*/) {}
  /// A line for the user, from the run or from another callback. Those that write to a screen or a log show it.
  virtual void on_message(RunContext& /*run*/, const std::string& /*line*/) {}
  /// When an error ends the run on this rank, before the error is reported. Not collective; must not throw.
  virtual void on_exception(const std::exception_ptr& /*error*/) {}
};

}  // namespace trireme::train
