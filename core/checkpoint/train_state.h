// Checkpoints of a training: everything that a run needs to resume as if it had not stopped.
//
// On disk, in the run's folder:
//   checkpoints/step-00000042/  weights.safetensors    full tensors by parameter name
//                               optimizer.safetensors  full tensors, "<parameter>.<key>" ("....weight.exp_avg")
//                               average.safetensors    the moving average of the weights, if there is one
//                               state.json             progress, seed, loss scale, versions, the caller's own JSON
//                               config.toml            the resolved config
//                               best.safetensors       weights of the best epoch so far, if there is one: a link
//                               config.json, ...       the files that an exported model has next to its tensors
//                               manifest.json          size and CRC-32 of each of the others; written last
// A checkpoint is written as step-00000042.tmp and renamed when complete: a name without .tmp is a complete one. Files
// hold full tensors, so any parallel layout can load what another one wrote. Older checkpoints are removed only after
// the newer one is complete.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/checkpoint/safetensors.h"
#include "core/nn/parameters.h"
#include "core/optim/optimizer.h"

namespace trireme::checkpoint {

/// Progress of the training: counts of completed work.
struct Progress {
  std::int64_t epoch = 0;          ///< the epoch in progress, from 0
  std::int64_t step_in_epoch = 0;  ///< optimizer steps done in this epoch
  std::int64_t global_step = 0;    ///< optimizer steps done in total
  std::int64_t samples = 0;        ///< samples seen in total
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

struct CheckpointContents {
  TrainRecord record;
  std::vector<shard::Slice> weights;
  std::vector<shard::Slice> optimizer;
  std::optional<std::vector<shard::Slice>> average;  ///< on every rank or on none
  std::map<std::string, std::string> texts;          ///< further files, by name ("config.json"); only on rank 0
  std::string best;        ///< a file with the weights of the best epoch, or ""; only on rank 0
  FileDigest best_digest;  ///< digest of the file `best`
};

/// Fills the values with their slices of a file's tensors, bitwise equal. Names, shapes and dtypes must match the
/// file's. `remote`: names of the model's parameters that other ranks restore. `converted`: names of floating-point
/// tensors whose dtype may be another, such as frozen weights, which have no master. `what` names the tensors in
/// errors: "parameters".
/// @throws CheckpointError that lists the differences; nothing has changed then.
void restore_slices(const SafeTensors& file, std::vector<shard::Slice> values, const std::set<std::string>& remote,
                    const char* what, const std::set<std::string>& converted = {});

/// Both lists, named as in checkpoints. A state tensor that has the shape of its parameter's slice gets the parameter's
/// placement; other state tensors are whole.
std::vector<shard::Slice> weights_of(const std::vector<nn::Parameter>& parameters);
std::vector<shard::Slice> states_of(optim::Optimizer& optimizer, const std::vector<nn::Parameter>& parameters);

/// Writes RUN/checkpoints/step-N, then removes all but the `keep` newest checkpoints (never the one just written) and
/// the leftovers of earlier crashes. Collective over the mesh's world: each rank provides its slices, rank 0 writes.
/// Returns the folder. @throws CheckpointError, only on rank 0: the other ranks then wait for it, so the program must
/// end. No partial checkpoint is left.
std::string save_checkpoint(const std::string& run_dir, const CheckpointContents& contents, std::int64_t keep,
                            comm::Mesh& mesh);

/// Renames the checkpoints of steps after `step` to NAME.aside (.aside.2, ...), where no run finds them, and returns
/// the new paths. For a run that resumes from an earlier step: an abandoned checkpoint must not count as its newest
/// one.
/// @throws CheckpointError
std::vector<std::string> set_aside_after(const std::string& run_dir, std::int64_t step);

/// How a checkpoint is verified against its manifest when it is opened.
enum class Verify {
  sizes,    ///< every file exists with its size: for ranks that follow a rank that verified the content
  content,  ///< also the CRC-32 of every file, which reads every byte
};

/// The newest complete and intact checkpoint of the run, or "" when the run has none. Each damaged one is skipped with
/// one warning, which gives the file and its expected and actual contents. Reads every byte of the one that it returns.
/// @throws CheckpointError that lists all checkpoints when all are damaged.
std::string latest_checkpoint(const std::string& run_dir, const Log& log);

/// An open checkpoint.
class Checkpoint {
 public:
  /// @throws CheckpointError when it is incomplete or damaged.
  explicit Checkpoint(const std::string& folder, Verify verify = Verify::content);

  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const TrainRecord& record() const { return record_; }
  /// The file with the weights of the best epoch so far; "" when the run had none.
  [[nodiscard]] std::string best() const;
  /// See restore_slices().
  void restore_weights(std::vector<shard::Slice> values, const std::set<std::string>& remote = {},
                       const std::set<std::string>& converted = {}) const {
    restore_slices(weights_, std::move(values), remote, "parameters", converted);
  }
  void restore_optimizer(std::vector<shard::Slice> values, const std::set<std::string>& remote = {}) const {
    restore_slices(optimizer_, std::move(values), remote, "optimizer's tensors");
  }
  [[nodiscard]] const SafeTensors& weights() const { return weights_; }
  [[nodiscard]] const SafeTensors& optimizer() const { return optimizer_; }
  /// Null when the run had no average of its weights.
  [[nodiscard]] const SafeTensors* average() const { return average_ ? &*average_ : nullptr; }

 private:
  std::string folder_;
  TrainRecord record_;
  SafeTensors weights_, optimizer_;
  std::optional<SafeTensors> average_;
};

}  // namespace trireme::checkpoint
