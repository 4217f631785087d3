// The folders of a run's checkpoints: RUN/checkpoints/step-00000042. A checkpoint is written as step-00000042.tmp and
// renamed when it is complete: a name without an ending is a complete one. Uses nothing of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::checkpoint {

inline constexpr const char* kTemporary = ".tmp";
inline constexpr const char* kReplaced = ".old.tmp";  ///< while another one gets its name (publish_folder())
inline constexpr const char* kAside = ".aside";

std::string checkpoint_folder(const std::string& run_dir, std::int64_t step);
/// The complete checkpoints' folders, newest first.
std::vector<std::string> complete_checkpoints(const std::string& run_dir);
/// The folders of all of them: also of unfinished ones and those that were set aside.
std::vector<std::string> all_checkpoints(const std::string& run_dir);
/// The step in the name of a complete checkpoint's folder, or -1.
std::int64_t step_of_folder(const std::string& folder);

/// Whether a crash in publish_folder() has left a checkpoint as NAME.old.tmp without a NAME.
bool has_replaced(const std::string& run_dir);
/// Gives such checkpoints their names back. The caller owns the run's folder (core/base/files/output_folder.h): no
/// other process saves in it.
void restore_replaced(const std::string& run_dir);
/// Removes what crashed or killed runs have left of unfinished checkpoints; calls restore_replaced() first.
void remove_leftovers(const std::string& run_dir);
/// Removes all but the `keep` newest checkpoints, never `newest`. Folders that cannot be removed now are retried at the
/// next save; this must not stop the training.
void remove_older(const std::string& run_dir, const std::string& newest, std::int64_t keep);
/// Renames the checkpoints of steps after `step` to NAME.aside (.aside.2, ...), where no run finds them, and returns
/// the new paths. For a run that resumes from an earlier step: an abandoned checkpoint must not count as its newest
/// one.
/// @throws CheckpointError
std::vector<std::string> set_aside_after(const std::string& run_dir, std::int64_t step);

}  // namespace trireme::checkpoint
