// Saves a run and resumes it (contract C8): bitwise equal in the same layout, within C1's bound in another one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/checkpoint/train_state.h"
#include "core/train/bad_numbers.h"
#include "core/train/prepare.h"

namespace trireme::train {

class BestModel;
class RunFolder;

/// An evaluation on the validation split.
struct Evaluated {
  std::int64_t epoch = 0;                ///< from 1; 0: none yet
  std::int64_t step = 0;                 ///< number of optimizer steps before it
  std::map<std::string, double> values;  ///< of the loss and of the task's metrics
  /// Whether this one is better than `other`. A value that is missing, because it was not finite or another version
  /// saved it, is worse than any finite one; the first evaluation is better than none.
  [[nodiscard]] bool better_than(const Evaluated& other, const Metric& by) const;
};

/// The progress and results of a run.
struct TrainerState {
  checkpoint::Progress at;  ///< the next batch is step at.step_in_epoch of epoch at.epoch
  Evaluated best, last;
  std::int64_t skipped = 0;  ///< steps that changed nothing, because a gradient was not finite
  std::int64_t evaluations_since_best = 0;
  NumbersState numbers{};
};

/// Writes RUN/checkpoints/step-N atomically, and deletes the oldest checkpoints beyond run.keep_checkpoints.
/// Returns its folder. Collective. @throws CheckpointError
std::string save_state(const Prepared& prepared, const RunFolder& folder, Booster& booster, Boosted& run,
                       const TrainerState& state, const BestModel& best);

/// The point from which a run starts.
struct ResumePoint {
  std::string from;                ///< a complete checkpoint that fits this run, or ""
  std::vector<std::string> notes;  ///< lines for the screen
  std::string done{};              ///< a message that nothing is left to do, or ""
};

/// Finds the checkpoint according to [run] resume. "": start a new run. "auto": the newest complete checkpoint of this
/// run, or a new run if there is none. A run's folder: its newest checkpoint, which must exist. Any other folder must
/// be a checkpoint. Only one rank calls this. @throws CheckpointError, also when the checkpoint's run had another
/// sample order or meaning of a step; the message names the keys, both values and the remedy.
ResumePoint find_resume_point(const Prepared& prepared, const std::string& config_toml);

/// Checks a checkpoint that the user named like find_resume_point(), but reads only its manifest. For a process that
/// checks before the ranks start. @throws CheckpointError
void check_resume_point(const Prepared& prepared, const std::string& config_toml);

/// Restores the run from the folder's checkpoint, including its best weights if the run keeps them, and removes later
/// steps from the folder.
/// Returns the checkpoint, or "" for a new run. Collective: every rank uses what rank 0 found.
/// @throws CheckpointError
std::string resume(const Prepared& prepared, RunFolder& folder, Booster& booster, Boosted& run, TrainerState& state,
                   BestModel& best);

/// Restores the run from a checkpoint of its own, including its best weights if the run keeps them. Collective.
/// @throws CheckpointError
void restore_run(const Prepared& prepared, Booster& booster, Boosted& run, TrainerState& state, BestModel& best,
                 const std::string& from);

}  // namespace trireme::train
