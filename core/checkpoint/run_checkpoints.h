// What the checkpoints of a run are, without reading their tensors: for listings. Only names, sizes, state.json and
// config.toml are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/train_state.h"

namespace trireme::checkpoint {

enum class Completeness {
  complete,      ///< every file that the manifest lists is there, with its size
  weights_only,  ///< files of the optimizer or others are missing, but those of the weights are there
  damaged,       ///< a file of the weights, or the manifest, is missing or of another size
  part,          ///< other hosts have the files that are not here; they do not share a file system
  incomplete,    ///< its writing was interrupted, or goes on: NAME.tmp
  set_aside,     ///< of a later step than that from which the run was resumed: NAME.aside
};
/// "complete", "weights only", "damaged", "part", "incomplete", "set aside"
const char* name_of(Completeness state);

struct CheckpointSummary {
  std::string folder;
  Completeness state = Completeness::complete;
  std::int64_t step = -1;            ///< by the folder's name; -1 if that is no checkpoint's of a run
  std::optional<Progress> progress;  ///< unset: state.json is missing or unreadable
  std::int64_t files = 0;            ///< of tensors of the ranks
  std::int64_t ranks = 0;            ///< that wrote them
  std::uint64_t bytes = 0;           ///< of all files in the folder
  std::filesystem::file_time_type written{};
  /// By its config.toml, which may be unreadable: the plugin, then the axes with more than one rank and the stage of
  /// ZeRO, by their keys in [parallel]. The number of data-parallel ranks is there only if the file has it.
  std::vector<std::pair<std::string, std::string>> layout;
  std::string problem;  ///< of a damaged one, or one of weights only
};

/// @throws CheckpointError when it is no folder
CheckpointSummary summarize_checkpoint(const std::string& folder);
/// All that the run has, the newest first; of one step the complete one first. Folders with other names are none.
std::vector<CheckpointSummary> list_checkpoints(const std::string& run_dir);

/// Finds the checkpoints that a user named: a checkpoint's folder, or a run's folder or its checkpoints/, which stand
/// for the complete ones, the newest first. At least one. @throws CheckpointError
std::vector<std::string> find_checkpoints(const std::string& run_or_checkpoint);

struct IntactCheckpoint {
  std::string folder;
  std::vector<std::string> skipped{};  ///< the newer ones of the run, each as "step-00000042 skipped: " and why
};
/// Of find_checkpoints() the newest one that is intact for the use. Unless `how` is sizes, reads every byte that the
/// use needs. @throws CheckpointError: what is wrong with the checkpoint that the user named; or with each one of the
/// run
IntactCheckpoint find_intact_checkpoint(const std::string& run_or_checkpoint, Use use, Verify how);

}  // namespace trireme::checkpoint
