// The end of a run: the exported weights, the test split and summary.json.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/train/callback.h"
#include "core/train/report/summary.h"

namespace trireme::train {

/// What finish() needs besides the run.
struct FinishInputs {
  std::function<double()> seconds;  ///< of the run so far
  std::int64_t local_samples = 0;
  std::optional<double> flops_per_s{};  ///< over all ranks
};

/// Exports the weights, evaluates them on the test split and writes summary.json. With RunPlan::keeps_last the
/// model keeps its last weights. Collective.
/// @throws CheckpointError; DataError, when the test split cannot be read; EvaluationStopped (stop.h)
RunResult finish(RunContext& run, const FinishInputs& inputs);

}  // namespace trireme::train
