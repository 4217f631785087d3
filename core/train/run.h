// The work of `trireme train`, `trireme eval` and `trireme predict`, from a prepared configuration.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/world.h"
#include "core/setup/run_setup.h"
#include "core/train/callback.h"
#include "core/train/evaluate.h"
#include "core/train/report/console.h"

namespace trireme::train {

struct RunOptions {
  Terminal terminal{};
  bool timeline = false;  ///< also write timeline.json, which covers three steps after the first two
  Callbacks callbacks{};  ///< in addition to the command's and to those of Kinds::callbacks
};
/// Trains (trainer.h), evaluates after each epoch and writes the run's folder, see open_run(). Collective over the
/// world. @throws Error of any kind; NonFiniteError when a loss is not finite.
void run_training(RunSetup setup, comm::World& world, std::unique_ptr<RunFolder> folder, RunOptions options);

/// Evaluates the prepared weights on the validation split and, if there is one, on the test split, and prints both
/// results. Returns the last result. `report_file`: if set, the task's report (Task::report()) is printed, too, and
/// written to this file with the results, as JSON by split, unless the name is "".
/// @throws CheckpointError when that file cannot be written, before the evaluation
EvalResult run_evaluation(RunSetup setup, comm::World& world, Terminal terminal,
                          const std::optional<std::string>& report_file = std::nullopt);

/// Called for the samples of each batch, in order. `samples`: their indices, int64 [B]; `predictions`:
/// Task::predictions(), float64 [B, outputs]; both on the CPU.
using OnPrediction = std::function<void(const at::Tensor& samples, const at::Tensor& predictions)>;
/// Predicts what the task learns for prepared files (RunSetup::files), on one rank. Returns the indices of those that
/// could not be read, which are only logged. @throws ConfigError when the task has no predictions; OutOfMemoryError
std::vector<std::int64_t> run_prediction(RunSetup setup, comm::World& world, const OnPrediction& on_prediction);

}  // namespace trireme::train
