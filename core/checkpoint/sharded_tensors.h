// ShardedTensors: full tensors that are stored as slices in several safetensors files beside a manifest, as the ranks
// of a run wrote them. A reader with any placement gets its slice from the files that hold parts of it, and reads no
// other bytes; a file is opened when the first of its slices is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/weights_file.h"

namespace trireme::checkpoint {

class ShardedTensors final : public WeightsFile {
 public:
  /// `group`: what the tensors are ("weights"); with the folder, it is the path in messages.
  ShardedTensors(std::string folder, const std::string& group, ShardedTensorMap tensors);

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> names() const override;
  /// The shape is that of the model's other files: transposed where stored_transposed is set.
  [[nodiscard]] TensorInfo info(const std::string& name) const override;
  [[nodiscard]] const ShardedTensorMap& tensors() const { return tensors_; }
  /// Bytes of tensors that were read so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 protected:
  [[nodiscard]] at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const override;
  [[nodiscard]] at::Tensor read_transposed(const std::string& name, const shard::Placement& placement) const override;

 private:
  [[nodiscard]] const ShardedTensor& find(const std::string& name) const;
  [[nodiscard]] at::Tensor assemble(const ShardedTensor& tensor, const shard::Placement& wanted) const;
  [[nodiscard]] const std::byte* bytes_of(const ShardedTensor& tensor, const StoredSlice& slice) const;

  std::string folder_, path_;
  ShardedTensorMap tensors_;
  mutable std::mutex opening_;
  mutable std::map<std::string, std::unique_ptr<SafeTensors>> files_;
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace trireme::checkpoint
