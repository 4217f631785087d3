// The safetensors file format (8-byte little-endian header length, JSON header, raw row-major little-endian data).
// Read without trusting it: every offset, size, dtype and shape is checked against the file before memory is touched.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "core/shard/placement.h"

namespace trireme::checkpoint {

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin, end;  ///< in the data section
};

/// An open file (memory-mapped, read-only).
class SafeTensors {
 public:
  /// @throws CheckpointError that names the file and what is wrong with it.
  explicit SafeTensors(const std::string& path);
  ~SafeTensors();
  SafeTensors(SafeTensors&&) noexcept;

  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  [[nodiscard]] const std::string& path() const;
  /// A copy of the whole tensor, on the CPU. @throws CheckpointError for an unknown name.
  [[nodiscard]] at::Tensor read(const std::string& name) const;
  /// Only this rank's slice, as placement says (its shape must be the file's). Reads just those bytes.
  [[nodiscard]] at::Tensor read(const std::string& name, const shard::Placement& placement) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct NamedValue {
  std::string name;
  at::Tensor value;
};

/// Writes all tensors to `path` (to a temporary name beside it, synced, then renamed: whole or not at all).
/// @throws CheckpointError (a full disk says so and leaves nothing behind).
void write_safetensors(const std::string& path, const std::vector<NamedValue>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace trireme::checkpoint
