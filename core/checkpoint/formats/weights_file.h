// WeightsFile: what every format of weights offers to the code that loads a model: names, dtypes, shapes, and slices.
// SafeTensors (safetensors.h), ShardedTensors (../sharded_tensors.h) and StateDict (state_dict.h) fulfil it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/shard/placement.h"

namespace trireme::checkpoint {

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
};

/// An open file. Reading is thread-safe.
class WeightsFile {
 public:
  WeightsFile() = default;
  WeightsFile(WeightsFile&&) = default;
  WeightsFile& operator=(WeightsFile&&) = default;
  virtual ~WeightsFile() = default;

  [[nodiscard]] virtual const std::string& path() const = 0;
  /// The entry of the file's dictionary that holds the tensors; "" when they are all that the file holds.
  [[nodiscard]] virtual std::string entry() const { return ""; }
  /// Sorted.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// @throws CheckpointError for an unknown name.
  [[nodiscard]] virtual TensorInfo info(const std::string& name) const = 0;
  /// Returns a copy of this rank's slice according to `placement`, whose stored_shape() must be the file's, on the CPU.
  /// @throws CheckpointError for an unknown name, another shape, or bytes that cannot be read.
  [[nodiscard]] at::Tensor read(const std::string& name, const shard::Placement& placement) const;

  /// Verifies the blocks of bytes that hold what read() would return, each once, if the file has sums of its blocks
  /// (core/base/files/digest.h). Other files are verified as a whole when they are opened. @throws CheckpointError
  virtual void verify(const std::string& /*name*/, const shard::Placement& /*placement*/) const {}

 protected:
  /// As read(), whose checks have passed. read_slice(): for a placement of the tensor as the file has it;
  /// read_transposed(): for one that is stored_transposed.
  [[nodiscard]] virtual at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const = 0;
  [[nodiscard]] virtual at::Tensor read_transposed(const std::string& name, const shard::Placement& placement) const;
  /// The slice of the transpose of what `read` reads: a function of a placement of that. The tensor has two dims.
  static at::Tensor transpose_of(const shard::Placement& placement,
                                 const std::function<at::Tensor(const shard::Placement&)>& read);
};

}  // namespace trireme::checkpoint
