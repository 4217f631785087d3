// Records a run's first steps as full tensors and measures the distance between two records. This tests that two
// layouts compute the same (contract C1).
#pragma once

#include <cstdint>
#include <string>

#include "core/setup/run_setup.h"

namespace trireme::train {

/// Trains `steps` steps and writes into `folder`: start.safetensors (weights), gradients-1.safetensors, ... (reduced,
/// without loss scale, before clipping), weights.safetensors after the last step, and losses.json. It does not evaluate
/// or save checkpoints. Collective.
void record_steps(RunSetup setup, comm::World& world, std::int64_t steps, const std::string& folder);

struct Distance {
  double value = 0;  ///< the largest over all tensors
  std::string of;    ///< name of that tensor
};
struct Difference {
  double loss = 0;  ///< the largest over all steps, relative
  Distance gradient, weight;
};
/// The distance of the record in `folder` from the one in `reference`, in 2-norms relative to the tensor's own norm.
/// That norm is taken to be at least 1e-6 of the norm of all gradients, or 1e-3 of the norm of all weights: the
/// gradient of a key's bias is only rounding error, and Adam scales it up. `coarse` is for precisions below float64,
/// where small tensors are rounding error too: the bound is then a tenth of the norm of all gradients, and for weights
/// the norm of the change of all weights. @throws CheckpointError
Difference compare_records(const std::string& folder, const std::string& reference, bool coarse);

}  // namespace trireme::train
