// The model of a run: its kind with resolved options, and how it is made, with adapters and the weights that it starts
// from.
#pragma once

#include <functional>
#include <memory>

#include "core/booster/plugin.h"
#include "core/nn/model_kind.h"
#include "core/setup/loaded_weights.h"
#include "core/setup/task_choice.h"

namespace trireme::train {

struct ChosenModel {
  std::shared_ptr<const nn::ModelKind> kind{};  ///< null in a program's run
  std::shared_ptr<const void> options{};        ///< resolved, with absolute paths
  /// Makes the model, without memory yet, with where its initial weights are. What it was made of is in
  /// ModelSource::options.
  std::function<ModelSource()> source{};
};

/// @throws ConfigError
ChosenModel choose_model(const RunConfig& config, const LoadedWeights& weights,
                         const std::shared_ptr<const nn::ModelKind>& kind, const ChosenTask& task,
                         const nn::DataSpec& data);
/// A program's own model.
ChosenModel model_of_program(const RunConfig& config, const std::function<ModelSource()>& make, const ChosenTask& task);

}  // namespace trireme::train
