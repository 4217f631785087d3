// Trainer: a complete training run: `trireme train` is a Trainer with the
// command's own callbacks (run.h), and a program makes one of a model, a task and data sets:
//
//   train::Trainer trainer(world, {.output_dir = "runs/digits", .num_train_epochs = 1},
//                          {.model = make_model, .task = task, .train = images, .eval = test});
//   trainer.train();
//
// How a step reaches the screen: TrainingLoop::train_step() launches it and puts its numbers into a Readback, which
// passes those that are on the host to every callback's on_log(). ConsoleReport draws the command's progress line from
// them, and EpochTable prints a program's table.
//
// All public functions are collective over the world.
#pragma once

#include <memory>
#include <string>

#include "core/resume/run_folder.h"
#include "core/train/evaluate.h"
#include "core/train/predict.h"
#include "core/train/report/summary.h"
#include "core/train/training_arguments.h"

namespace trireme::train {

class TrainingLoop;

class Trainer {
 public:
  /// A program's run. Its callbacks are an EpochTable, MetricsFile, and what the arguments ask for (early stopping),
  /// then those of the inputs. @throws ConfigError, DataError, CheckpointError
  Trainer(comm::World& world, const TrainingArguments& arguments, TrainerInputs inputs);
  /// A run that is prepared in another way, with just these callbacks.
  Trainer(RunSetup setup, comm::World& world, std::unique_ptr<RunFolder> folder, Callbacks callbacks);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until the last step, or until a callback stops it, evaluates, saves, and writes the run's folder
  /// (core/resume/run_folder.h). @throws Error of any kind; NonFiniteError when a loss is not finite; StoppedBySignal
  /// (stop.h)
  RunResult train();
  /// The loss and metrics of the model as it is, on this data set or on the evaluation data.
  EvalResult evaluate(const std::shared_ptr<data::Dataset>& data = nullptr);
  /// What the model as it is computes for the samples of a data set, in their order.
  Predictions predict(const std::shared_ptr<data::Dataset>& data);
  /// Writes the weights as they are to FOLDER/model.safetensors, in Hugging Face's layout; with [lora] the adapters, in
  /// PEFT's.
  void save_model(const std::string& folder);

  /// The model, optimizer and loader as the plugin runs them.
  [[nodiscard]] Boosted& boosted();

 private:
  std::unique_ptr<TrainingLoop> loop_;
};

}  // namespace trireme::train
