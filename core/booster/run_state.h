// Converts a boosted run to checkpoint contents and back: weights, optimizer state and loss scale.
#pragma once

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme {

/// This rank's slices of all tensors; sets only the loss scale and versions of the record, the caller sets the rest.
checkpoint::CheckpointContents contents_of(Boosted& run);

/// The newest intact checkpoint below `dir` according to rank 0, on every rank; "" if there is none. If rank 0 fails,
/// every rank throws its error. Collective. @throws CheckpointError
std::string newest_checkpoint(const comm::World& world, const std::string& dir, const Log& log);

/// Restores the tensors, the loss scale and the step count of a checkpoint. Each rank reads its own slices.
/// @throws CheckpointError that lists the differences; the run is then unchanged.
void restore(Boosted& run, const checkpoint::Checkpoint& stored, const Log& log);

}  // namespace trireme
