// How a run is saved and taken up again (contract C8): in the same layout bit for bit, in another within C1's bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"
#include "core/train/prepare.h"

namespace trireme::train {

class BestModel;
class RunFolder;

/// An evaluation on the validation split.
struct Evaluated {
  std::int64_t epoch = 0;  ///< from 1; 0: none yet
  std::int64_t step = 0;   ///< optimizer steps before it
  double accuracy = 0, loss = 0;
};

/// Where a run stands.
struct TrainerState {
  checkpoint::Progress at;  ///< the next batch is step at.step_in_epoch of epoch at.epoch
  Evaluated best, last;
  std::int64_t skipped = 0;  ///< steps that the loss scale skipped
};

/// Writes RUN/checkpoints/step-N, whole or not at all, and deletes the oldest beyond run.keep_checkpoints.
/// Collective.
/// @throws CheckpointError
void save_state(const Prepared& prepared, const RunFolder& folder, Booster& booster, Boosted& run,
                const TrainerState& state, const BestModel& best);

/// Where a run begins.
struct ResumePoint {
  std::string from;                ///< a checkpoint that is whole and fits this run, or ""
  std::vector<std::string> notes;  ///< lines for the screen
  std::string done{};              ///< nothing is left to do: a line that says so; else ""
};

/// As [run] resume says: "" starts anew; "auto" takes the newest intact checkpoint of the run, or starts anew where it
/// has none at all; a run's folder must have one; any other folder must be one. For one rank to call. @throws
/// CheckpointError also when the checkpoint's run had another order of samples or meaning of a step: names the keys,
/// both values and the remedy.
ResumePoint find_resume_point(const Prepared& prepared, const std::string& config_toml);

/// What find_start() refuses of a checkpoint that the user named, from its manifest alone. For a process that checks
/// before the ranks start. @throws CheckpointError
void check_start(const Prepared& prepared, const std::string& config_toml);

/// Puts the run where the folder's checkpoint stood, its best weights included, and cuts what the folder tells of later
/// steps. Returns the checkpoint, or "" for a run that starts anew. Collective: every rank takes what rank 0 found.
/// @throws CheckpointError
std::string resume(const config::RunConfig& config, RunFolder& folder, Booster& booster, Boosted& run,
                   TrainerState& state, BestModel& best);

}  // namespace trireme::train
