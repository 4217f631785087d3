// TensorList: the tensors that a path names, whatever holds them: a checkpoint or a run's newest one, weights in
// Hugging Face's layout, adapters, or one file. Each is full, whatever slices it is stored in, and has the layout of
// exported models. For listing, summing up and comparing; only headers are read until a tensor is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/formats/weights_file.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/weights/weights_source.h"

namespace trireme::checkpoint {

struct ListedTensor {
  const WeightsFile* file;
  std::string name;  ///< in the file
  TensorInfo info;
  int group = 0;  ///< of a checkpoint: its number, in the order of listings; the weights have 0
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::uint64_t bytes() const;
  /// A copy of the full tensor. @throws CheckpointError
  [[nodiscard]] at::Tensor read() const;
};

enum class Groups {
  all,      ///< of a checkpoint its weights, average and optimizer's tensors, as "optimizer: NAME"
  weights,  ///< of a checkpoint what a run evaluates
};

/// Whether the path names a checkpoint, itself or as its run's newest one, and not other weights.
bool names_checkpoint(const std::string& path);

class TensorList {
 public:
  /// Of a run the newest checkpoint that is intact. `how`: of a checkpoint; content also reads every byte of the
  /// groups' files. @throws CheckpointError
  explicit TensorList(const std::string& path, Groups groups = Groups::all, Verify how = Verify::sizes);

  [[nodiscard]] const std::map<std::string, ListedTensor>& tensors() const { return tensors_; }
  /// The file or folder that was found for the path: "runs/a/checkpoints/step-00000042".
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_checkpoint() const { return is_checkpoint_; }
  /// IntactCheckpoint::skipped
  [[nodiscard]] const std::vector<std::string>& skipped() const { return skipped_; }
  [[nodiscard]] std::size_t files() const { return file_count_; }
  /// "__metadata__" of a safetensors file, or "metadata" of an index, with values as text.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The checkpoint of which the file is one rank's part; "" for others.
  [[nodiscard]] const std::string& part_of() const { return part_of_; }

 private:
  void open_checkpoint(const std::string& path, Groups groups, Verify how);
  void open_weights(const std::string& path);
  void add(const WeightsFile& file, const std::string& prefix, int group);

  std::string path_, part_of_;
  std::vector<std::string> skipped_;
  bool is_checkpoint_ = false;
  std::size_t file_count_ = 1;
  std::vector<std::unique_ptr<WeightsFile>> owned_;
  std::unique_ptr<WeightsSource> source_;
  std::map<std::string, ListedTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace trireme::checkpoint
