// Converts a boosted run to checkpoint contents and back: weights, optimizer state and loss scale.
#pragma once

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme {

/// This rank's slices of all tensors; sets only the loss scale and versions of the record, the caller sets the rest.
checkpoint::CheckpointContents contents_of(ModelAndOptimizer& run);

/// Restores the tensors, the loss scale and the step count of a checkpoint. Each rank reads its own slices. Nothing is
/// verified but sizes: see good_checkpoint.h.
/// @throws CheckpointError that lists the differences; the run is then unchanged.
void restore(ModelAndOptimizer& run, const checkpoint::Checkpoint& stored, const Log& log);

}  // namespace trireme
