// Checkpoints of a training: everything a run needs to go on as if it had not stopped.
//
// On disk, in the run's folder:
//   checkpoints/step-00000042/  weights.safetensors    full tensors by parameter name
//                               optimizer.safetensors  full tensors, "<parameter>.<key>" ("....weight.exp_avg")
//                               state.json             progress, seed, loss scale, versions, the caller's own JSON
//                               config.toml            the resolved config
//                               best.safetensors       weights of the best epoch so far, where there is one: a link
//                               config.json, ...       what an exported model has beside its tensors
//                               manifest.json          size and CRC-32 of each of the others; written last
// A checkpoint is written as step-00000042.tmp and renamed when complete: a name without .tmp is a whole one. Files
// hold full tensors, so that any layout loads what any other wrote. Older ones are removed only after the newer stands.
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

/// Where the training stands: counts of what is done.
struct Progress {
  std::int64_t epoch = 0;          ///< the epoch in progress, from 0
  std::int64_t step_in_epoch = 0;  ///< optimizer steps done of it
  std::int64_t global_step = 0;    ///< optimizer steps done in all
  std::int64_t samples = 0;        ///< samples seen in all
  friend bool operator==(const Progress&, const Progress&) = default;
};

/// All but the tensors.
struct TrainRecord {
  Progress progress;
  std::int64_t seed = 0;
  std::optional<std::vector<double>> loss_scale;  ///< LossScaler::state(); unset without a scaler
  std::string config;                             ///< resolved TOML
  std::map<std::string, std::string> versions;    ///< {"trireme": "0.1.0", "libtorch": "2.11.0", ...}
  nlohmann::json extra;                           ///< the caller's: best metrics and so on (finite numbers)
};

struct CheckpointContents {
  TrainRecord record;
  std::vector<shard::Slice> weights;
  std::vector<shard::Slice> optimizer;
  std::map<std::string, std::string> texts;  ///< further files, by name ("config.json"); for rank 0 alone
  std::string best;                          ///< a file with the weights of the best epoch, or ""; for rank 0 alone
  FileDigest best_digest;                    ///< of that file
};

/// Both lists as checkpoints name them. A state tensor with its parameter's slice's shape has its placement; others are
/// whole.
std::vector<shard::Slice> weights_of(const std::vector<nn::Parameter>& parameters);
std::vector<shard::Slice> states_of(optim::Optimizer& optimizer, const std::vector<nn::Parameter>& parameters);

/// Writes RUN/checkpoints/step-N, then removes all but the `keep` newest (never the one just written) and what earlier
/// crashes left. Collective over the mesh's world: each rank gives its slices, rank 0 writes. Returns the folder.
/// @throws CheckpointError, on rank 0 alone: the others then wait for it, and the program must end; nothing
/// half-written is left.
std::string save_checkpoint(const std::string& run_dir, const CheckpointContents& contents, std::int64_t keep,
                            comm::Mesh& mesh);

/// Renames the checkpoints of steps after `step` to NAME.aside (.aside.2, ...), where no run finds them; the new paths.
/// For a run that goes back: what it abandons must not be taken for its newest. @throws CheckpointError
std::vector<std::string> set_aside_after(const std::string& run_dir, std::int64_t step);

/// How a checkpoint is checked against its manifest when it is opened.
enum class Verify {
  sizes,    ///< every file is there with its size: for ranks that follow one that checked all
  content,  ///< and its CRC-32: reads every byte
};

/// The newest complete and intact checkpoint of the run, or "" when the run has none. Damaged ones are skipped with one
/// warning each, which names the file, what it should be and what it is. Reads every byte of the one it returns.
/// @throws CheckpointError when all are damaged: says so of each.
std::string latest_checkpoint(const std::string& run_dir, const Log& log);

/// An open checkpoint.
class Checkpoint {
 public:
  /// @throws CheckpointError when it is not whole.
  explicit Checkpoint(const std::string& folder, Verify verify = Verify::content);

  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const TrainRecord& record() const { return record_; }
  /// The file with the weights of the best epoch so far; "" when the run had none.
  [[nodiscard]] std::string best() const;
  /// Fills values with their slices, bit for bit. Names, shapes and dtypes must be the checkpoint's. `elsewhere`: names
  /// of the model's parameters that other ranks restore.
  /// @throws CheckpointError that lists what differs; then nothing has changed.
  void restore_weights(std::vector<shard::Slice> values, const std::set<std::string>& remote = {}) const {
    restore(weights_, std::move(values), remote, "parameters");
  }
  void restore_optimizer(std::vector<shard::Slice> values, const std::set<std::string>& remote = {}) const {
    restore(optimizer_, std::move(values), remote, "optimizer's tensors");
  }
  [[nodiscard]] const SafeTensors& weights() const { return weights_; }
  [[nodiscard]] const SafeTensors& optimizer() const { return optimizer_; }

 private:
  void restore(const SafeTensors& file, std::vector<shard::Slice> values, const std::set<std::string>& remote,
               const char* what) const;

  std::string folder_;
  TrainRecord record_;
  SafeTensors weights_, optimizer_;
};

}  // namespace trireme::checkpoint
