// The files in a checkpoint's folder, and which of them serve what: a run that resumes needs all of them, a reader of
// weights only state.json, config.toml and the files with the weights that the run evaluates. A checkpoint without its
// optimizer's files therefore still serves as weights. The format is in train_state.h and manifest.h.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "core/checkpoint/formats/weights_file.h"
#include "core/checkpoint/manifest.h"

namespace trireme::checkpoint {

// The groups of tensors; format 1 of the manifest has a file of full tensors for each.
inline constexpr const char* kWeights = "weights";
inline constexpr const char* kOptimizer = "optimizer";
inline constexpr const char* kAverage = "average";

inline constexpr const char* kState = "state.json";
inline constexpr const char* kConfig = "config.toml";
inline constexpr const char* kBest = "best.safetensors";

/// What a checkpoint is opened for.
enum class Use { resume, weights };

bool has_group(const Manifest& manifest, const std::string& group);
/// The names of the files that hold tensors of the group.
std::set<std::string> files_of(const Manifest& manifest, const std::string& group);
/// Those that the use needs.
std::set<std::string> needed_files(const Manifest& manifest, Use use);
/// Those that ranks verify in part, each what it restores and its share of the best weights. Verify::record leaves out
/// their content.
std::set<std::string> files_in_parts(const Manifest& manifest);
/// The group of the weights that the run evaluates: their average, if it has one.
const char* evaluated_group(const Manifest& manifest);

/// Reads the manifest and verifies the files that the use needs. @throws CheckpointError
Manifest verified_manifest(const std::string& folder, Verify how, Use use);
/// Null when the checkpoint has no such group. @throws CheckpointError
std::unique_ptr<WeightsFile> open_group(const std::string& folder, const Manifest& manifest, const std::string& group);

/// The rank in the name of a file that a rank wrote, such as weights-00003-00.safetensors; -1 for other files.
int rank_of_file(const std::string& name);
/// The checkpoint's folder if `path` is such a file and has its manifest beside it; else "".
std::string checkpoint_of_part(const std::string& path);

}  // namespace trireme::checkpoint
