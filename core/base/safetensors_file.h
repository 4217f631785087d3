// SafeTensorsFile: reads a safetensors file, whole tensors or bytes. Used for data sets and checkpoints.
//
// Format: 8 bytes little-endian header length, a JSON header, then the tensors' raw row-major little-endian bytes.
// The file is memory-mapped and not trusted: length, JSON, dtypes, shapes and offsets are all checked against the file
// when it is opened (each byte of the data belongs to exactly one tensor), so no later read can be out of bounds.
// Invariant: after construction, every TensorEntry describes bytes that exist. Reading is thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/mapped_bytes.h"

namespace trireme {

/// A file that violates its format. The message begins with the file's name and describes the error; data sets convert
/// it to DataError.
class FormatError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// The dtype that the format calls `name` ("F32", "BF16", ...).
std::optional<at::ScalarType> safetensors_dtype(const std::string& name);
/// What the format calls the dtype; "" when it has no name for it.
std::string safetensors_name(at::ScalarType dtype);

class SafeTensorsFile {
 public:
  struct TensorEntry {
    at::ScalarType dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin, end;  ///< bytes in the data section
    [[nodiscard]] std::int64_t numel() const;
  };

  /// @throws FormatError when the file cannot be opened or its header is invalid.
  explicit SafeTensorsFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  /// The header's "__metadata__"; empty if it has none.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// @throws FormatError for an unknown name; the message gives it and the nearest one.
  [[nodiscard]] const TensorEntry& entry(const std::string& name) const;
  /// The tensor's bytes in the mapped file: valid while this object exists, and possibly not aligned for its dtype.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name) const;
  /// Where the data section begins in the file: the entries' begin and end count from there.
  [[nodiscard]] std::size_t data_begin() const { return data_begin_; }
  /// Returns a copy of the whole tensor on the CPU.
  [[nodiscard]] at::Tensor read(const std::string& name) const;

 private:
  void parse_header();
  void add_tensor(const std::string& name, const void* json_entry);
  void check_coverage() const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  MappedBytes file_;
  std::size_t data_begin_ = 0;  ///< offset of the data section in the file
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace trireme
