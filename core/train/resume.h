// How a run is saved and taken up again (contract C8): in the same layout bit for bit, in another within C1's bound.
#pragma once

#include <cstdint>
#include <string>

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"

namespace trireme::train {

/// The best evaluation so far.
struct Best {
  std::int64_t epoch = 0;  ///< from 1; 0: none yet
  double accuracy = 0, loss = 0;
};

/// Where a run stands.
struct Standing {
  checkpoint::Progress at;  ///< the next batch is step at.step_in_epoch of epoch at.epoch
  Best best;
};

/// Writes run_dir/checkpoints/step-N, whole or not at all, and deletes the oldest beyond run.keep_checkpoints. For one
/// rank to call. @throws CheckpointError
void save_standing(const config::RunConfig& config, const std::string& run_dir, const std::string& config_toml,
                   Boosted& run, const Standing& standing);

/// As [run] resume says: "" starts anew; "auto" takes the newest intact checkpoint of the run, if there is one; a
/// folder must be one. Returns the folder resumed from, or "". Collective: every rank takes what rank 0 found.
/// @throws CheckpointError
std::string resume(const config::RunConfig& config, const std::string& run_dir, Booster& booster, Boosted& run,
                   Standing& standing);

}  // namespace trireme::train
