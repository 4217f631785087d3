// ShardedTensors: full tensors that are stored as slices in several safetensors files beside a manifest, as the ranks
// of a run wrote them. A reader with any placement gets its slice from the files that hold parts of it, and reads no
// other bytes; a file is opened when the first of its slices is read. verify() reads the blocks that hold the slice.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/file_blocks.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/formats/weights_file.h"
#include "core/checkpoint/manifest.h"

namespace trireme::checkpoint {

/// A slice that is needed is in a file of another host, which is not here.
class MissingPart : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

class ShardedTensors final : public WeightsFile {
 public:
  /// `group`: of the manifest's tensors ("weights"); with the folder, it is the path in messages.
  ShardedTensors(std::string folder, const std::string& group, const Manifest& manifest);

  [[nodiscard]] const std::string& path() const override { return path_; }
  /// Names and shapes are those of the model's other files: transposed where stored_transposed is set, and those of
  /// the parts with stored_unstacked. A tensor with parts can be read by its own name too.
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] TensorInfo info(const std::string& name) const override;
  [[nodiscard]] const ShardedTensorMap& tensors() const { return tensors_; }
  void verify(const std::string& name, const shard::Placement& placement) const override;
  /// Bytes of tensors that were read so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
  /// Bytes of the files that were verified so far.
  [[nodiscard]] std::uint64_t bytes_verified() const;

 protected:
  [[nodiscard]] at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const override;
  [[nodiscard]] at::Tensor read_transposed(const std::string& name, const shard::Placement& placement) const override;

 private:
  /// @throws CheckpointError: no slice that is here holds the element. MissingPart if one of another host does
  [[noreturn]] void fail_without(const ShardedTensor& tensor, const std::string& name, std::int64_t element) const;
  template <class Use>
  void for_each_piece(const ShardedTensor& tensor, const shard::Placement& wanted, const Use& use) const;
  /// A tensor, or the part of one that other files hold under this name.
  struct Found {
    const ShardedTensor* tensor;
    std::optional<std::int64_t> part;
    [[nodiscard]] shard::Placement in_tensor(const shard::Placement& placement) const {
      return part ? placement.in_whole(*part, tensor->shape[0]) : placement;
    }
  };
  [[nodiscard]] Found find(const std::string& name) const;
  [[nodiscard]] at::Tensor assemble(const ShardedTensor& tensor, const shard::Placement& wanted) const;
  /// The open file with the slice, after a check that it has the slice.
  [[nodiscard]] const SafeTensors& file_with(const ShardedTensor& tensor, const StoredSlice& slice) const;

  std::string folder_, path_;
  std::string elsewhere_;  ///< missing_parts()
  ShardedTensorMap tensors_;
  std::map<std::string, Found> parts_;  ///< by their names
  std::map<std::string, FileDigest> digests_;
  mutable std::mutex opening_;
  mutable std::map<std::string, std::unique_ptr<SafeTensors>> files_;
  mutable std::map<std::string, FileBlocks> blocks_;
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace trireme::checkpoint
