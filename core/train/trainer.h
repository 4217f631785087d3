// Trainer: a complete training run, and the only training loop there is: `trireme train` is a Trainer with the
// command's own callbacks (run.h), and a program makes one of a model, a task and data sets:
//
//   train::Trainer trainer(world, {.output_dir = "runs/digits", .num_train_epochs = 1},
//                          {.model = make_model, .task = task, .train = images, .eval = test});
//   trainer.train();
//
// How a step reaches the screen: train_step() launches it and puts its numbers into a Readback, which passes those that
// are on the host to every callback's on_log(). ConsoleReport draws the command's progress line from them, and
// EpochTable prints a program's table.
//
// All public functions are collective over the world.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/booster/good_checkpoint.h"
#include "core/booster/vote.h"
#include "core/checkpoint/background_saver.h"
#include "core/checkpoint/storage.h"
#include "core/train/bad_numbers.h"
#include "core/train/callback.h"
#include "core/train/export.h"
#include "core/train/flop_rate.h"
#include "core/train/predict.h"
#include "core/train/prepare.h"
#include "core/train/readback.h"
#include "core/train/replica_check.h"
#include "core/train/run_folder.h"
#include "core/train/step_clock.h"
#include "core/train/stop.h"
#include "core/train/summary.h"
#include "core/train/training_arguments.h"

namespace trireme::train {

class Trainer {
 public:
  /// A program's run. Its callbacks are an EpochTable, MetricsFile, and what the arguments ask for (early stopping),
  /// then those of the inputs. @throws ConfigError, DataError, CheckpointError
  Trainer(comm::World& world, const TrainingArguments& arguments, TrainerInputs inputs);
  /// A run that is prepared in another way, with just these callbacks.
  Trainer(Prepared prepared, comm::World& world, std::unique_ptr<RunFolder> folder, Callbacks callbacks);
  virtual ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until the last step, or until a callback stops it, evaluates, saves, and writes the run's folder
  /// (run_folder.h). @throws Error of any kind; NonFiniteError when a loss is not finite; StoppedBySignal (stop.h)
  RunResult train();
  /// The loss and metrics of the model as it is, on this data set or on the evaluation data.
  EvalResult evaluate(const std::shared_ptr<data::Dataset>& data = nullptr);
  /// What the model as it is computes for the samples of a data set, in their order.
  Predictions predict(const std::shared_ptr<data::Dataset>& data);
  /// Writes the weights as they are to FOLDER/model.safetensors, in Hugging Face's layout; with [lora] the adapters, in
  /// PEFT's.
  void save_model(const std::string& folder);

  [[nodiscard]] Booster& booster() { return booster_; }
  /// The model, optimizer and loader as the plugin runs them.
  [[nodiscard]] Boosted& boosted();

 protected:
  /// The sum of the losses of a batch, for training and evaluation: by default the task's. The engine divides it by the
  /// weight of the whole batch, which is the task's (Task::weight()), so that the result is the same in every layout.
  [[nodiscard]] virtual at::Tensor compute_loss(const nn::Tensors& outputs, const data::Batch& batch,
                                                const Task::LossOptions& options) const;

 private:
  class OverriddenLoss;
  using Clock = std::chrono::steady_clock;

  // The run, in the order of its parts.
  void run_all();
  void start();
  void train_epoch();
  std::optional<data::StepBatch> next_batch();
  void train_step(const data::StepBatch& batch);
  void pass_over();
  void read_back(const TrainStep& step, const data::StepBatch& batch, StepLog log);
  void finish_steps();
  void validate(const std::optional<Clock::time_point>& epoch_begin);
  void record_evaluation(const EvalResult& eval, const std::optional<EpochEnd>& epoch);
  void save();
  void prepare_saver();
  bool keep_best();
  bool bears_failure(const char* what, std::int64_t step, const std::function<void()>& part);
  void hold_for_save(std::int64_t step, const std::function<void()>& part);
  void record_save(const checkpoint::SavedCheckpoint& saved);
  void vote();
  void await_writers();
  void poll_save();
  void settle_save();
  void throw_if_unrecorded();
  void warn_if_unrecorded(const std::string& error) const;
  RunResult end();
  RunResult finish_run();

  [[noreturn]] void throw_stopped();
  [[nodiscard]] std::string what_is_saved() const;
  [[nodiscard]] std::string what_is_unsaved(std::int64_t step) const;
  [[nodiscard]] std::string held_memory() const;
  [[nodiscard]] bool may_retry() const;
  void end_if_stopped();

  /// Thrown through the loop, on every rank after the same step.
  struct ReturnToCheckpoint {
    GoodCheckpoint from;
    BadStep bad;
  };
  void judge(const StepLog& log);
  void act_on_numbers(bool all_are_read);
  void compare_replicas();
  void return_to(const ReturnToCheckpoint& back);
  void remove_leftovers_elsewhere();
  void set_aside_elsewhere(std::int64_t step);
  void boost();
  [[nodiscard]] EpochEnd epoch_end(Clock::time_point begin) const;
  [[nodiscard]] bool is_evaluation_due() const { return is_due(p_.config.train.eval_every.value_or(0)); }
  [[nodiscard]] bool is_save_due() const { return is_due(p_.config.run.checkpoint_every); }
  [[nodiscard]] bool is_due(std::int64_t every) const { return every > 0 && state_.at.global_step % every == 0; }
  [[nodiscard]] bool is_epoch_done() const { return state_.at.step_in_epoch == run_.loader->steps_per_epoch(); }
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] bool is_stopped_by_signal() const;
  [[nodiscard]] bool is_epoch_evaluation_due() const;
  [[nodiscard]] std::int64_t epoch_number() const;
  [[nodiscard]] std::optional<double> peak_of_all() const;
  [[nodiscard]] std::string memory_remedy() const;
  [[nodiscard]] data::Loader& validation_loader();
  void report_error(const std::exception_ptr& error);
  template <class... Parameters, class... Arguments>
  void call(void (RunCallback::*event)(RunContext&, Parameters...), const Arguments&... arguments) {
    for (const auto& callback : callbacks_) (callback.get()->*event)(context_, arguments...);
  }

  // In this order: the folder's resolved configuration has the plugin's options, and the booster takes p_.plugin away.
  Prepared p_;
  comm::World& world_;
  std::unique_ptr<RunFolder> folder_;
  Callbacks callbacks_;
  BestModel best_model_;
  Booster booster_;
  Boosted run_;
  std::unique_ptr<data::Loader> validation_;
  Readback readback_;
  FlopRate flop_rate_;
  TrainerState state_;
  BadNumbers numbers_;
  std::optional<ReplicaCheck> replicas_;
  RunContext context_;
  std::optional<RunResult> result_;
  std::int64_t local_samples_ = 0;
  checkpoint::Storage storage_;                       ///< of the run's folder, unless nothing is saved
  std::optional<checkpoint::BackgroundSaver> saver_;  ///< with run.async_save, from the start on
  LaggedVote written_, save_failed_;                  ///< the part in progress of a background save
  LaggedVote unrecorded_;                             ///< rank 0 could not record the run
  double save_held_s_ = 0;                            ///< the time for which the training has waited for the last save
  std::int64_t saved_step_ = -1;                      ///< of this object's last save
  std::string saved_;                                 ///< the checkpoint that the run would resume from, or ""
  std::optional<PolledVote> stops_;                   ///< of the evaluation in progress
  std::int64_t elements_ = 0, padding_ = 0;
  Clock::time_point begin_;
  StepClock clock_;
};

}  // namespace trireme::train
