// Tensors in safetensors files: sliced reads by Placement, and writing. The format and the checks for untrusted files
// are in core/base/safetensors_file.h, whose errors are CheckpointErrors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/files.h"
#include "core/base/safetensors_file.h"
#include "core/base/text.h"
#include "core/checkpoint/formats/weights_file.h"
#include "core/shard/assembly.h"

namespace trireme::checkpoint {

/// An open file (memory-mapped, read-only). A slice is read without the rest of its tensor.
class SafeTensors : public WeightsFile {
 public:
  /// @throws CheckpointError that names the file and the problem.
  explicit SafeTensors(const std::string& path) : file_(path) {}

  [[nodiscard]] const std::map<std::string, SafeTensorsFile::TensorEntry>& tensors() const { return file_.tensors(); }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
  [[nodiscard]] const std::string& path() const override { return file_.path(); }
  [[nodiscard]] std::vector<std::string> names() const override { return text::keys_of(tensors()); }
  [[nodiscard]] TensorInfo info(const std::string& name) const override;
  using WeightsFile::read;
  /// Returns a copy of the whole tensor on the CPU. @throws CheckpointError for an unknown name.
  [[nodiscard]] at::Tensor read(const std::string& name) const { return file_.read(name); }
  /// See SafeTensorsFile::bytes(). @throws CheckpointError for an unknown name.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name) const { return file_.bytes(name); }
  /// Where the data of all tensors begin in the file, and where those of one do.
  [[nodiscard]] std::uint64_t data_begin() const { return file_.data_begin(); }
  [[nodiscard]] std::uint64_t begin_of(const std::string& name) const {
    return file_.data_begin() + tensors().at(name).begin;
  }

 protected:
  [[nodiscard]] at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const override;

 private:
  SafeTensorsFile file_;
};

/// A tensor of a file, as the file has it.
struct StoredEntry {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
};
std::uint64_t bytes_of(const StoredEntry& entry);
/// Indices of the entries in the order of a file: widest dtype first, then by name, which keeps every tensor aligned.
std::vector<std::size_t> file_order(const std::vector<StoredEntry>& entries);
/// The indices of the entries of each file, in file_order(), when a file has at most so many bytes of tensors, but for
/// a tensor that is larger. Without entries there is no file.
std::vector<std::vector<std::size_t>> split_by_size(const std::vector<StoredEntry>& entries, std::uint64_t most_bytes);

/// Writes the entries at these indices, which are in file_order(), to `path` atomically (FileWriter). `value` is called
/// for one index after the other and returns its tensor, of the entry's shape and dtype. @throws CheckpointError
FileDigest write_tensors(const std::string& path, const std::vector<StoredEntry>& entries,
                         const std::vector<std::size_t>& indices, const std::function<at::Tensor(std::size_t)>& value,
                         const std::map<std::string, std::string>& metadata = {});

struct NamedValue {
  std::string name;
  at::Tensor value;
};

/// Writes all tensors to `path` as they are. Only one tensor at a time is copied to the CPU. @throws CheckpointError
FileDigest write_safetensors(const std::string& path, const std::vector<NamedValue>& tensors,
                             const std::map<std::string, std::string>& metadata = {});

/// The tensor in the entry's dtype. @throws CheckpointError for values that are beyond the range of the dtype
at::Tensor converted(const at::Tensor& value, const StoredEntry& entry);

/// Returns what is written in place of a full tensor, of the same shape and dtype. Called on rank 0.
using ChangeTensor = std::function<at::Tensor(const std::string& name, const at::Tensor& full)>;

/// The full tensors of all ranks' slices, in the layout and the dtypes of a file.
class SliceSource {
 public:
  /// Collective over the mesh's world. `dtype`: of floating tensors; unset: that of the slices.
  SliceSource(const std::vector<shard::Slice>& slices, comm::Mesh& mesh, std::optional<at::ScalarType> dtype = {},
              ChangeTensor change = {});
  /// On rank 0 all of them; on other ranks those for which rank 0 needs this rank.
  [[nodiscard]] const std::vector<StoredEntry>& entries() const { return entries_; }
  /// Calls `write_all` on rank 0, which writes the tensors as it gets them from value(), while the other ranks send
  /// theirs. When it fails, rank 0 first takes what the others still send, so that all of them can go on. Returns the
  /// digest of rank 0's file, and an empty one on other ranks. Collective. @throws CheckpointError of `write_all` on
  /// every rank, with the same message
  FileDigest write(const std::function<FileDigest()>& write_all);
  /// On rank 0, within write(): the tensor, in host memory. Ask for each once, in file_order().
  /// @throws CheckpointError as converted()
  [[nodiscard]] at::Tensor value(std::size_t entry);

 private:
  shard::Assembly assembly_;
  std::vector<StoredEntry> entries_;
  ChangeTensor change_;
  comm::World& world_;
  std::size_t collected_ = 0;  ///< entries that rank 0 has got, in file_order()
};

/// Writes the full tensors from all ranks' slices; rank 0 writes and holds one full tensor at a time. Returns the
/// digest of rank 0's file, and an empty one on other ranks. Collective over the mesh's world. @throws CheckpointError
/// on every rank, with the same message
FileDigest write_slices(const std::string& path, const std::vector<shard::Slice>& slices, comm::Mesh& mesh,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace trireme::checkpoint
