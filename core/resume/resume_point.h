// Where a run starts: anew, or from which checkpoint, by run.resume and what is in run.dir. The rules and their reasons
// are in docs/design/resume.md. One function searches, for three callers (run_folder.h): check_run() before ranks
// connect; open_run(); and RunFolder::look_further(), when a rank finds damage as resume() restores the run (resume.h).
// A training that returns to a checkpoint of its own finds it by newest_checkpoint() (core/booster/good_checkpoint.h).
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/train_state.h"
#include "core/setup/run_setup.h"

namespace trireme::train {

// The values of run.resume; any other one is the path of a checkpoint or of a run's folder.
inline constexpr const char* kResumeAuto = "auto";    ///< goes on with an unfinished run in run.dir
inline constexpr const char* kResumeMust = "must";    ///< goes on with the run in run.dir, which must have a checkpoint
inline constexpr const char* kResumeNever = "never";  ///< a new run

/// The point from which a run starts.
struct ResumePoint {
  std::string from{};                ///< a complete checkpoint that fits this run, or ""
  std::vector<std::string> notes{};  ///< lines for the screen
  std::string done{};                ///< a message that nothing is left to do, or ""
  /// What is known of an earlier run in run.dir that is not continued.
  enum class Earlier { unknown, finished, without_checkpoint } earlier = Earlier::unknown;
};

/// Whether a run that this key stopped has come to its end: its last step, or early stopping. `stopped_by`: "" for
/// none.
bool ends_training(const std::string& stopped_by);
/// Whether the run in this folder reached its last step, or early stopping ended it, and its results are written.
bool is_finished(const std::string& run_dir);

/// Finds the checkpoint according to run.resume. `config_toml`: the resolved configuration. `how`: for a run
/// Verify::record, which reads all of a checkpoint but the tensors; for a check Verify::sizes, which reads its
/// manifest. `known`: damaged checkpoints, which are skipped; those that are found are added. Only one rank calls this.
/// @throws CheckpointError when there is none where there must be one, when all are damaged, or when its run had
/// another sample order or meaning of a step; the message has the remedy
ResumePoint find_resume_point(const RunSetup& setup, const std::string& config_toml, checkpoint::Verify how,
                              checkpoint::Damages& known, const Log& log);

}  // namespace trireme::train
