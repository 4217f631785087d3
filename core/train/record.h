// A record of a run's first steps as full tensors, and how far two records are apart: the proof that two layouts
// compute the same (contract C1).
#pragma once

#include <cstdint>
#include <string>

#include "core/train/prepare.h"

namespace trireme::train {

/// Trains `steps` steps and writes into `folder`: start.safetensors (weights), gradients-1.safetensors, ... (reduced,
/// without loss scale, before the clip), weights.safetensors after the last step, and losses.json. No evaluation, no
/// checkpoint. Collective.
void record_steps(Prepared prepared, comm::World& world, std::int64_t steps, const std::string& folder);

struct Distance {
  double value = 0;  ///< the largest of all tensors
  std::string of;    ///< its name
};
struct Difference {
  double loss = 0;  ///< of any step, relative
  Distance gradient, weight;
};
/// Of the record in `folder` from that in `reference`. In 2-norms, relative to the tensor's own, which is taken to be
/// at least 1e-6 of that of all gradients, or 1e-3 of that of all weights: the gradient of a key's bias is rounding
/// alone, and Adam scales it up. `coarse`, for precisions below float64, where small tensors are rounding too: a tenth
/// of that of all gradients, and of weights the norm of all that the steps have changed. @throws CheckpointError
Difference compare_records(const std::string& folder, const std::string& reference, bool coarse);

}  // namespace trireme::train
