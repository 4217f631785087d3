// RunSetup: everything about a run that can be known and checked before a process group exists. Each part is made once,
// from the parts before it:
//
//   weights -> plugin -> data(weights) -> task(data, weights) -> model(task, data, weights) -> batch(plugin, data)
//
// Errors in a user's file, data or flags are reported here, in the first second, before another rank waits for this
// one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/booster/booster.h"
#include "core/comm/world.h"
#include "core/setup/loaded_weights.h"
#include "core/setup/model_choice.h"
#include "core/setup/open_data.h"
#include "core/setup/run_config.h"
#include "core/setup/task_choice.h"

namespace trireme::train {

/// What the loop does besides its steps. A file's run does all but load the best weights.
struct RunPlan {
  bool evaluates_epochs = true, saves_epochs = true;  ///< at the end of each epoch
  bool keeps_best = true;                             ///< the weights of the best evaluation, in RUN/model-best
  bool loads_best_at_end = false;
  bool keeps_last = true;  ///< the model has its last weights after the test of the best ones, at a copy's cost
};

/// Numbers of samples, and of steps.
struct BatchPlan {
  std::int64_t global = 1;  ///< samples of an optimizer step
  std::int64_t micro = 1;   ///< samples of a rank per forward pass
  std::int64_t eval = 1;    ///< the same in an evaluation
  std::int64_t steps = 0;   ///< optimizer steps of the whole training, for the learning-rate schedule
};

struct RunSetup {
  RunConfig config;  ///< with the shared keys of plugins, and what opening the data fills in of its options
  LaunchInfo launch;
  std::string planned{};          ///< what the plan chose, for the user (core/plan/auto_layout.h); "": nothing
  double began = unix_seconds();  ///< the set-up, or the process of a command
  Log log;                        ///< of this rank; its file is opened when the run folder exists
  LoadedWeights weights{};
  std::unique_ptr<Plugin> plugin{};
  data::Datasets data{};
  data::FileSamples files{};  ///< of a prediction: the samples of data.validation
  ChosenTask task{};
  ChosenModel model{};
  std::map<std::string, std::string> kept_files{};  ///< files_to_keep() of the weights
  BatchPlan batch{};
  RunPlan plan{};
  DataCollator collator{};  ///< of a program: it makes the batches of the data sets (collated()); null: they do so
};

/// A training. `opened`: another one with the same data, which is then not opened again; null: none.
/// @throws ConfigError, DataError, CheckpointError
RunSetup prepare_training(RunConfig config, const LaunchInfo& launch, const Log& log, const RunSetup* opened = nullptr);
/// An evaluation of these weights, or with `inputs` a prediction for these files and folders (data::open_files()).
/// Options that matter only in a backward pass are reset: the run may have been on another device or in other pipeline
/// stages. @throws ConfigError, DataError, CheckpointError
RunSetup prepare_evaluation(RunConfig config, const LaunchInfo& launch, const std::string& weights, const Log& log,
                            const std::vector<std::string>& inputs = {});
/// The model of weights, without data, for text that is made from given token ids (core/train/generate.h).
/// @throws ConfigError when it is not a model for the task causal_lm; CheckpointError
RunSetup prepare_generation(RunConfig config, const LaunchInfo& launch, const std::string& weights, const Log& log);

/// The number of ranks, or groups of ranks, that train on different samples.
int data_parallel_size(const Plugin& plugin, int world_size);
/// Of a training, whose parts have been made: the batch, and the checks of the parts against each other and with the
/// plugin. @throws ConfigError, CheckpointError
void finish_training_setup(RunSetup& setup);

BoostOptions booster_options(const RunConfig& config);
/// The model, its task and the training data, as configured.
BoostInputs training_inputs(const RunSetup& setup);

/// The complete configuration with all defaults, as TOML that can be run again. `task`: which the configuration may
/// leave open; null if it is not known yet.
/// `model_rows`: the model's own keys.
std::string resolved_toml(RunConfig config, const TaskKind* task, const Plugin& plugin, const std::string& model_rows);

}  // namespace trireme::train
