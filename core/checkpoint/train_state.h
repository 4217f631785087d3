// Checkpoints of a training: everything that a run needs to resume as if it had not stopped.
//
// On disk, in the run's folder:
//   checkpoints/step-00000042/  weights-00003-00.safetensors    slices of parameters that rank 3 has written
//                               optimizer-00003-00.safetensors  of the optimizer's tensors, "<parameter>.exp_avg"
//                               average-00003-00.safetensors    of the moving average of the weights, if there is one
//                               state.json                      progress, seed, loss scale, versions, the caller's JSON
//                               config.toml                     the resolved config
//                               best.safetensors                weights of the best epoch, if there is one: a link
//                               config.json, ...                the files that an exported model has with its tensors
//                               manifest.json                   every file and every slice; see manifest.h
// All ranks write at the same time, each its own slices. A slice is part of a named full tensor, so any parallel layout
// can load what another one wrote, each rank only its own slices. Older checkpoints are removed only after the newer
// one is complete. Checkpoints of format 1 (full tensors, one file of each kind) are read too.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/checkpoint/checkpoint_folders.h"
#include "core/checkpoint/formats/weights_file.h"
#include "core/checkpoint/manifest.h"
#include "core/comm/mesh.h"
#include "core/nn/parameters.h"
#include "core/optim/optimizer.h"

namespace trireme::checkpoint {

/// Progress of the training: counts of completed work.
struct Progress {
  std::int64_t epoch = 0;          ///< the epoch in progress, from 0
  std::int64_t step_in_epoch = 0;  ///< optimizer steps done in this epoch
  std::int64_t global_step = 0;    ///< optimizer steps done in total: Boosted::step
  std::int64_t samples = 0;        ///< samples seen in total
  /// The epoch in progress or, between two, the one that is done, from 1; 0 before the first step.
  [[nodiscard]] std::int64_t epoch_number() const { return step_in_epoch == 0 ? epoch : epoch + 1; }
  friend bool operator==(const Progress&, const Progress&) = default;
};

/// Everything except the tensors.
struct TrainRecord {
  Progress progress;
  std::int64_t seed = 0;
  std::optional<std::vector<double>> loss_scale;  ///< LossScaler::state(); unset without a scaler
  std::string config;                             ///< resolved TOML
  std::map<std::string, std::string> versions;    ///< {"trireme": "0.1.0", "libtorch": "2.11.0", ...}
  nlohmann::json extra;                           ///< set by the caller: best metrics and so on (finite numbers)
};

/// Reads a record from state.json, all but its configuration. The text is not trusted: it may be damaged, or written by
/// hand. The seed must be an integer, counts also not negative, and a loss scale finite numbers. `path` names the file
/// in errors. @throws CheckpointError
TrainRecord parse_state(const std::string& text, const std::string& path);
/// The count that the object has for the key: an integer that is not negative. `path` names the file in errors.
/// @throws CheckpointError, and nlohmann::json::exception when it is no object or has no such key
std::int64_t count_in(const nlohmann::json& object, const char* key, const std::string& path);

inline constexpr std::uint64_t kMostFileBytes = std::uint64_t{2} << 30;

struct CheckpointContents {
  TrainRecord record;
  std::vector<shard::Slice> weights;
  std::vector<shard::Slice> optimizer;
  std::optional<std::vector<shard::Slice>> average;  ///< on every rank or on none
  std::map<std::string, std::string> texts;          ///< further files, by name ("config.json"); only on rank 0
  std::uint64_t most_file_bytes = kMostFileBytes;    ///< of tensors in a file
  std::string best;        ///< a file with the weights of the best epoch, or ""; only on rank 0
  FileDigest best_digest;  ///< digest of the file `best`

  struct Group {
    const char* name;  ///< that of its files
    std::vector<shard::Slice>* slices;
  };
  /// The weights, the optimizer's state and, if there is one, the average. Valid while the contents are.
  [[nodiscard]] std::vector<Group> groups();
};

/// Fills the values with their slices of a file's tensors, bitwise equal. Names, shapes and dtypes must match the
/// file's. `remote`: names of the model's parameters that other ranks restore. `converted`: names of floating-point
/// tensors whose dtype may be another, such as frozen weights, which have no master. `what` names the tensors in
/// errors: "parameters".
/// @throws CheckpointError that lists the differences; nothing has changed then.
void restore_slices(const WeightsFile& file, std::vector<shard::Slice> values, const std::set<std::string>& remote,
                    const char* what, const std::set<std::string>& converted = {});

/// The two parts of restore_slices(). @throws CheckpointError
void check_slices(const WeightsFile& file, const std::vector<shard::Slice>& values, const std::set<std::string>& remote,
                  const char* what, const std::set<std::string>& converted = {});
void fill_slices(const WeightsFile& file, std::vector<shard::Slice> values);

/// Both lists, named as in checkpoints. A state tensor that has the shape of its parameter's slice gets the parameter's
/// placement; other state tensors are whole.
std::vector<shard::Slice> weights_of(const std::vector<nn::Parameter>& parameters);
std::vector<shard::Slice> states_of(optim::Optimizer& optimizer, const std::vector<nn::Parameter>& parameters);

/// Writes RUN/checkpoints/step-N (checkpoint_save.h), then removes all but the `keep` newest checkpoints (never the one
/// just written) and the leftovers of earlier crashes. Collective over the mesh's world: each rank writes its slices,
/// and rank 0 the rest. Returns the folder, which is complete then. @throws CheckpointError, on every rank, with the
/// same message; no part of the new checkpoint is left then, and earlier ones are untouched.
std::string save_checkpoint(const std::string& run_dir, const CheckpointContents& contents, std::int64_t keep,
                            comm::Mesh& mesh);

struct Damage {
  std::string why{};       ///< "": none
  bool only_best = false;  ///< of the best weights alone
  bool was_said = false;
};
/// Checkpoints that are damaged, by their folders.
using Damages = std::map<std::string, Damage>;

/// The newest complete and intact checkpoint of the run, or "" when the run has none. `known` are skipped; further ones
/// that `how` finds damaged are added. Each one is said in one warning, which gives the file and its expected and
/// actual contents. When none is intact, it is the newest one of which only the best weights are damaged; those are not
/// said here, because it depends on an older one whether any is skipped.
/// @throws CheckpointError that lists all checkpoints when there is none of these either
std::string latest_checkpoint(const std::string& run_dir, const Log& log, Verify how, Damages& known);

/// An open checkpoint.
class Checkpoint {
 public:
  /// @throws CheckpointError when it is incomplete or damaged.
  explicit Checkpoint(const std::string& folder, Verify verify = Verify::content);

  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const TrainRecord& record() const { return record_; }
  /// The file with the weights of the best epoch so far; "" when the run had none.
  [[nodiscard]] std::string best() const;
  /// As the manifest lists it; empty when the run had none.
  [[nodiscard]] const FileDigest& best_digest() const { return best_digest_; }
  /// Verifies one of `count` equal parts of that file. @throws CheckpointError
  void verify_best(int index, int count) const;
  [[nodiscard]] const WeightsFile& weights() const { return *weights_; }
  [[nodiscard]] const WeightsFile& optimizer() const { return *optimizer_; }
  /// Null when the run had no average of its weights.
  [[nodiscard]] const WeightsFile* average() const { return average_.get(); }

 private:
  std::string folder_;
  TrainRecord record_;
  FileDigest best_digest_;
  bool best_is_everywhere_ = true;  ///< else only the host of rank 0 has it
  std::unique_ptr<WeightsFile> weights_, optimizer_, average_;
};

/// The content of state.json. @throws LogicError when a number in it is not finite
std::string state_text(const TrainRecord& record);
/// What state.json and config.toml say. @throws CheckpointError
TrainRecord read_record(const std::string& folder);

/// The weights that the run of a checkpoint evaluates: their average, if it has one. Verifies the sizes of their files
/// alone: the optimizer's may be gone. @throws CheckpointError
std::unique_ptr<WeightsFile> open_checkpoint_weights(const std::string& folder);
/// Verifies what open_checkpoint_weights() reads. @throws CheckpointError
TrainRecord verify_checkpoint_weights(const std::string& folder, Verify how);

}  // namespace trireme::checkpoint
