// StoredNames: where a model's tensors are in the files of its weights. The files may use the model's own names, those
// without its common prefix (an exported base model), or another library's (nn::Naming). In each case all names may
// begin with further parts that a wrapper in Python added: "module." of DistributedDataParallel, "_orig_mod." of
// torch.compile. Which names occur decides. Where a file lacks "X.weight" or "X.bias", TensorFlow's names of a norm's
// parameters, "X.gamma" and "X.beta", are tried.
#pragma once

#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/checkpoint/weights/weights_source.h"
#include "core/nn/naming.h"
#include "core/shard/placement.h"

namespace trireme::checkpoint {

/// A tensor of the model in a file. If `parts` is above 1, it is this one of so many equal parts along dim 0.
struct StoredTensor {
  const WeightsFile* file = nullptr;  ///< null when no file has it
  std::string name;
  std::int64_t part = 0, parts = 1;

  [[nodiscard]] TensorInfo info() const { return file->info(name); }
  /// The shape of the stored tensor for a model's tensor with this placement.
  [[nodiscard]] std::vector<std::int64_t> shape_for(shard::Placement placement) const;
  /// This rank's slice of the model's tensor; of a safetensors file no other bytes are read. @throws CheckpointError
  [[nodiscard]] at::Tensor read(const shard::Placement& placement) const;
};

class StoredNames {
 public:
  /// `names`: of all the model's parameters. Those that begin with `head_prefix` ("" for none) may be missing or of
  /// another model, so they do not decide. `source` and `namings` must outlive the object. @throws CheckpointError for
  /// a tensor that the model cannot use
  StoredNames(const WeightsSource& source, const std::vector<std::string>& names, const std::string& head_prefix,
              const std::vector<nn::Naming>& namings);

  /// Its name in the file is set even if no file has it.
  [[nodiscard]] StoredTensor find(const std::string& name) const;
  /// What all names of the files begin with and the model's do not: "module."; usually "".
  [[nodiscard]] const std::string& wrapper() const { return wrapper_; }
  /// null: the model's own names.
  [[nodiscard]] const nn::Naming* naming() const { return naming_; }

 private:
  [[nodiscard]] bool decide(const std::vector<std::string>& names, const std::vector<nn::Naming>& namings);
  void refuse_unsupported() const;

  const WeightsSource& source_;
  std::string head_prefix_;
  std::string wrapper_;
  std::string missing_prefix_;  ///< with which the model's names outside its head begin, and which the files omit
  const nn::Naming* naming_ = nullptr;
};

}  // namespace trireme::checkpoint
