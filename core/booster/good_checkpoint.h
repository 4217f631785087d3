// The choice of a checkpoint to restore, on which all ranks agree: the newest one in which none finds damage.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme {

struct GoodCheckpoint {
  std::string folder{};       ///< "": there is none
  std::string best_damage{};  ///< of its best weights, which are to be left out: no checkpoint has good ones; else ""
};

/// Whether the run uses the best weights of a checkpoint.
enum class NeedsBest { no, yes };

/// The first folder of a search in which no rank finds damage, on every rank. `first` is where rank 0 begins; `next`,
/// which it calls with the damage of a folder, finds another one, or the same one again when only its best weights are
/// damaged and none is better. Those skipped for one with intact best weights are said in warnings. Each rank reads the
/// blocks of bytes that it needs (ShardedTensors::verify()) and its share of the best weights. Rank 0 must have opened
/// the folders with Verify::record. Collective.
/// @throws CheckpointError, on every rank, when `next` does, or a rank needs a file that another host has
GoodCheckpoint find_good_checkpoint(
    const comm::World& world, ModelAndOptimizer& run, NeedsBest needs_best, const std::string& first,
    const std::function<std::string(const std::string& folder, const checkpoint::Damage& damage)>& next,
    const Log& log);

/// The newest such checkpoint below `dir`. Collective. @throws CheckpointError, on every rank, when all are damaged
GoodCheckpoint newest_checkpoint(const comm::World& world, ModelAndOptimizer& run, NeedsBest needs_best,
                                 const std::string& dir, const Log& log);

/// Sets the checkpoints aside that newest_checkpoint() has passed over: those of steps after the one that it found. On
/// every host's own folder. Collective. @throws CheckpointError, on every rank, when it fails on one
void set_aside_damaged(const comm::World& world, const std::string& dir, std::int64_t step);

}  // namespace trireme
