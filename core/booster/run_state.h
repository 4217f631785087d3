// The state of a boosted run to and from checkpoints: weights, optimizer state and loss scale.
#pragma once

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme {

/// This rank's slices of all tensors, with the loss scale and versions in the record; the rest of it is the caller's.
checkpoint::CheckpointContents contents_of(Boosted& run);

/// Gives `run` the tensors, the loss scale and the count of steps of a checkpoint. Each rank reads its own slices.
/// @throws CheckpointError that lists what differs; then nothing has changed.
void restore(Boosted& run, const checkpoint::Checkpoint& stored);

}  // namespace trireme
