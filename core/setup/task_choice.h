// The task of a run: that of the file, else that of the loaded weights if it fits the data, else the model's own.
#pragma once

#include <memory>
#include <string>

#include "core/booster/task.h"
#include "core/data/datasets.h"
#include "core/nn/model_kind.h"
#include "core/setup/loaded_weights.h"

namespace trireme::train {

/// The name of the loss among the metrics.
inline constexpr const char* kLoss = "loss";

struct ChosenTask {
  TaskKind kind{};                     ///< with its options
  std::shared_ptr<const Task> made{};  ///< for the data of the run
  Metric best{};                       ///< decides which weights are the best; "loss" for the loss
  Metric shown{};                      ///< on the screen beside the loss: the best one, or the task's first
};

/// @throws ConfigError
std::string name_task(const RunConfig& config, const LoadedWeights& weights, const nn::ModelKind& model,
                      const nn::DataSpec& spec);
/// Makes the task of this name for the data. @throws ConfigError, DataError
ChosenTask choose_task(const RunConfig& config, const std::string& name, const data::DatasetInfo& data);
/// A task that is made already, with its metrics by train.best. @throws ConfigError
ChosenTask with_metrics(const RunConfig& config, TaskKind kind, std::shared_ptr<const Task> made);

/// For an evaluation. @throws ConfigError when the config.json of the weights says that they are for another task
void check_problem(const RunConfig& config, const LoadedWeights& weights, const TaskKind& task);

}  // namespace trireme::train
