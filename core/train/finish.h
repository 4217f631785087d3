// The end of a run: the exported weights, the test split and summary.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "core/train/callback.h"
#include "core/train/report/summary.h"

namespace trireme::train {

/// Exports the weights, evaluates them on the test split and writes summary.json. With RunPlan::keeps_last the
/// model keeps its last weights. `begin`: when the training began. `local_samples`: of this rank. `flops_per_s`: over
/// all ranks. Collective. @throws CheckpointError; DataError, when the test split cannot be read; EvaluationStopped
/// (stop.h)
RunResult finish(RunContext& run, std::chrono::steady_clock::time_point begin, std::int64_t local_samples,
                 std::optional<double> flops_per_s);

}  // namespace trireme::train
