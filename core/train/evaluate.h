// Evaluation over all ranks: the loss and the task's metrics; every sample counts once.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/booster/booster.h"
#include "core/setup/task_choice.h"

namespace trireme::train {

struct EvalResult {
  std::int64_t samples = 0;
  double loss = 0;                                 ///< mean over the task's units: samples or tokens
  std::vector<std::pair<Metric, double>> metrics;  ///< the task's, in its order
  at::Tensor report;  ///< the totals for TaskReport, on the CPU; undefined when none was asked for
  double seconds = 0;
  /// The value of a metric, or of "loss". @throws UsageError when the task has no such metric
  [[nodiscard]] double value(const std::string& name) const;
};

/// A metric's value on the screen: "85.0 %", "1.2345".
std::string metric_text(const Metric& metric, double value);
/// {"loss": ..., "accuracy": ..., "top_k": ..., "k": 5, ...}
nlohmann::json to_json(const EvalResult& result);

/// Calls `use` with the model's outputs for each batch that has samples on this rank, without graph. Collective over
/// the data-parallel ranks; leaves the model in training mode. `before_batch`: if given, called on every rank before
/// each batch; it may throw on all of them to end the pass.
void forward_all(Boosted& run, data::Loader& loader,
                 const std::function<void(const nn::Tensors& outputs, const data::Batch& batch)>& use,
                 const std::function<void()>& before_batch = {});

/// Collective over the data-parallel ranks; leaves the model in training mode. `task`: null for the one that the
/// model is trained for. `report`: also measured, unless it is null. `before_batch`: see forward_all().
/// @throws DataError (no sample could be read, or no label counts), OutOfMemoryError
EvalResult evaluate(Boosted& run, data::Loader& loader, const Task* task = nullptr, const TaskReport* report = nullptr,
                    const std::function<void()>& before_batch = {});

}  // namespace trireme::train
