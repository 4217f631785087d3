// Converts a boosted run to checkpoint contents and back: weights, optimizer state and loss scale.
#pragma once

#include <functional>

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme {

/// This rank's slices of all tensors; sets only the loss scale and versions of the record, the caller sets the rest.
checkpoint::CheckpointContents contents_of(Boosted& run);

/// Runs `action` on rank 0; every rank throws its CheckpointError. Collective.
void on_first_rank(const comm::World& world, const std::function<void()>& action);

/// The first damage in what the ranks would restore of a checkpoint, on every rank; "" if there is none. Each rank
/// reads the blocks of bytes that it needs (ShardedTensors::verify()) and its share of the best weights. Collective.
/// Rank 0 must have opened the checkpoint with Verify::record. @throws CheckpointError, on every rank, when a rank
/// needs a file that another host has
std::string find_damage(const comm::World& world, Boosted& run, const std::string& folder);

/// The newest checkpoint below `dir` in which no rank finds damage, on every rank; "" if there is none. Collective.
/// @throws CheckpointError, on every rank, when all are damaged
std::string newest_checkpoint(const comm::World& world, Boosted& run, const std::string& dir, const Log& log);

/// Restores the tensors, the loss scale and the step count of a checkpoint. Each rank reads its own slices. Nothing is
/// verified but sizes: see find_damage().
/// @throws CheckpointError that lists the differences; the run is then unchanged.
void restore(Boosted& run, const checkpoint::Checkpoint& stored, const Log& log);

}  // namespace trireme
