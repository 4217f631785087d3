// Tensors in safetensors files: sliced reads by Placement, and writing. The format itself, and the checks that let an
// untrusted file be read, are core/base/safetensors_file.h; here its errors become CheckpointErrors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/safetensors_file.h"
#include "core/checkpoint/files.h"
#include "core/shard/assembly.h"
#include "core/shard/placement.h"

namespace trireme::checkpoint {

using TensorInfo = SafeTensorsFile::TensorEntry;

/// An open file (memory-mapped, read-only). Reading is thread-safe.
class SafeTensors {
 public:
  /// @throws CheckpointError that names the file and what is wrong with it.
  explicit SafeTensors(const std::string& path);

  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const { return file_.tensors(); }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// @throws CheckpointError for an unknown name.
  [[nodiscard]] const TensorInfo& info(const std::string& name) const;
  /// A copy of the whole tensor, on the CPU. @throws CheckpointError for an unknown name.
  [[nodiscard]] at::Tensor read(const std::string& name) const;
  /// Only this rank's slice, as placement says (its shape must be the file's). Reads just those bytes.
  [[nodiscard]] at::Tensor read(const std::string& name, const shard::Placement& placement) const;

 private:
  SafeTensorsFile file_;
};

struct NamedValue {
  std::string name;
  at::Tensor value;
};

/// Writes all tensors to `path`, whole or not at all (FileWriter). One tensor at a time is copied to the CPU, so the
/// model never exists twice. Order in the file: widest dtype first, then by name, which keeps every tensor aligned.
/// @throws CheckpointError
FileDigest write_safetensors(const std::string& path, const std::vector<NamedValue>& tensors,
                             const std::map<std::string, std::string>& metadata = {});

/// Collective over the mesh's world: rank 0 writes the full tensors of all ranks' slices in the same way, one at a time
/// in its memory. The digest of rank 0's file; an empty one on the others.
FileDigest write_slices(const std::string& path, const std::vector<shard::Slice>& slices, comm::Mesh& mesh,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace trireme::checkpoint
