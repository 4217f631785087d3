// Tensors in safetensors files: sliced reads by Placement, and writing. The format and the checks for untrusted files
// are in core/base/safetensors_file.h; here its errors become CheckpointErrors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/safetensors_file.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/weights_file.h"
#include "core/shard/assembly.h"

namespace trireme::checkpoint {

/// An open file (memory-mapped, read-only). A slice is read without the rest of its tensor.
class SafeTensors : public WeightsFile {
 public:
  /// @throws CheckpointError that names the file and the problem.
  explicit SafeTensors(const std::string& path);

  [[nodiscard]] const std::map<std::string, SafeTensorsFile::TensorEntry>& tensors() const { return file_.tensors(); }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
  [[nodiscard]] const std::string& path() const override { return file_.path(); }
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] TensorInfo info(const std::string& name) const override;
  using WeightsFile::read;
  /// Returns a copy of the whole tensor on the CPU. @throws CheckpointError for an unknown name.
  [[nodiscard]] at::Tensor read(const std::string& name) const;

 protected:
  [[nodiscard]] at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const override;

 private:
  SafeTensorsFile file_;
};

struct NamedValue {
  std::string name;
  at::Tensor value;
};

/// Writes all tensors to `path` atomically (FileWriter). Only one tensor at a time is copied to the CPU. Order in the
/// file: widest dtype first, then by name, which keeps every tensor aligned.
/// @throws CheckpointError
FileDigest write_safetensors(const std::string& path, const std::vector<NamedValue>& tensors,
                             const std::map<std::string, std::string>& metadata = {});

/// Writes the full tensors in the same way from all ranks' slices; rank 0 writes and holds one full tensor at a time.
/// `change`: called on rank 0 for each full tensor; returns what is written in its place, of the same shape and dtype.
/// Returns the digest of rank 0's file, and an empty one on other ranks. Collective over the mesh's world.
FileDigest write_slices(const std::string& path, const std::vector<shard::Slice>& slices, comm::Mesh& mesh,
                        const std::map<std::string, std::string>& metadata = {},
                        const std::function<at::Tensor(const std::string& name, const at::Tensor& full)>& change = {});

}  // namespace trireme::checkpoint
