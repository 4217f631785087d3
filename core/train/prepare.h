// Everything that can be checked and opened before a process group exists: plugin, model, data, layout. Errors in a
// user's file, data or flags are reported here, in the first second, before another rank waits for this one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/comm/world.h"
#include "core/data/datasets.h"
#include "core/nn/model_kind.h"
#include "core/train/run_config.h"

namespace trireme::train {

/// Makes a batch of samples, as data::Dataset::collate() does.
using DataCollator = std::function<data::Sample(std::vector<data::Sample>, const std::vector<std::int64_t>& indices)>;

/// What a program's run can have and a file's cannot.
struct RunPlan {
  bool evaluates_epochs = true, saves_epochs = true;  ///< at the end of each epoch
  bool keeps_best = true;                             ///< the weights of the best evaluation, in RUN/model-best
  bool loads_best_at_end = false;
  bool keeps_last = true;  ///< the model has its last weights after the test of the best ones, at a copy's cost
  /// Makes batches of a data set's samples in the program's way; null: in the data set's own.
  DataCollator collator{};
  /// Makes the program's model; null: the file names a kind of model.
  std::function<ModelSource()> source{};
  /// The data set with the collator.
  [[nodiscard]] std::shared_ptr<data::Dataset> collated(std::shared_ptr<data::Dataset> data) const;
};

struct Prepared {
  RunConfig config;
  RunPlan plan;
  LaunchInfo launch;
  Log log;  ///< of this rank; its file is opened when the run folder exists
  std::unique_ptr<Plugin> plugin;
  data::Datasets data;
  std::vector<std::string> files;       ///< of a prediction: the samples of data.validation, by index
  std::shared_ptr<nn::ModelKind> kind;  ///< null in a program's run
  std::shared_ptr<void> model_options;  ///< resolved
  std::string weights;                  ///< the weights that the model starts from, or ""
  std::string adapters;                 ///< the file with the adapters that it starts from, or ""
  /// What exports keep of the files beside the weights, by name; see keep_files_of_weights().
  std::map<std::string, std::string> kept_files;
  TaskKind task_kind;  ///< with its options
  std::shared_ptr<const Task> task;
  Metric best;   ///< decides which weights are the best; "loss" for the loss
  Metric shown;  ///< on the screen beside the loss: the best one, or the task's first
  std::int64_t micro_batch = 1, eval_batch = 1;
  std::int64_t total_steps = 0;  ///< of the whole training, for the learning-rate schedule
};

/// Sets the metrics that decide and that are shown, by train.best and the task. @throws ConfigError
void choose_metrics(Prepared& prepared);

/// Checks what was opened against each other, with the plugin, and fills in batch sizes and steps. `trains`: false for
/// an evaluation. @throws ConfigError, CheckpointError
void check_prepared(Prepared& prepared, bool trains);

/// `weights`: overrides model.weights, for an evaluation. `inputs`: for a prediction, the files and folders that take
/// the place of the data set (data::open_files()), whose classes are then those of the weights; a file that cannot be
/// read is skipped. @throws ConfigError, DataError, CheckpointError
Prepared prepare(RunConfig config, const LaunchInfo& launch, const std::string& weights, const Log& log,
                 const std::vector<std::string>& inputs = {});

/// The model of weights, without data, for text that is made from given token ids (core/train/generate.h).
/// @throws ConfigError when it is not a model for the task causal_lm; CheckpointError
Prepared prepare_generation(RunConfig config, const LaunchInfo& launch, const std::string& weights, const Log& log);

/// The model, without memory yet, and its initial weights.
ModelSource model_source(const Prepared& prepared);
BoostOptions booster_options(const Prepared& prepared);
/// The model, its task and the training data, as configured.
BoostInputs training_inputs(const Prepared& prepared);

/// The complete configuration with all defaults, as TOML that can be run again. `task`: null if it is not known yet.
/// `model_rows`: the model's own keys.
std::string resolved_toml(RunConfig config, const TaskKind* task, const Plugin& plugin, const std::string& model_rows);

}  // namespace trireme::train
