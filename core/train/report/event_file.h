// EventFile: a file of scalars by step in the format that TensorBoard reads.
//
// The file is a series of records (TensorFlow's TFRecord: length, checksum of the length, data, checksum of the data),
// each an Event message in protobuf's encoding. The few fields of scalars are encoded here: protobuf would be a heavy
// dependency for six of them, with a version of its own that clashes with those of other libraries in a process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files/append_file.h"

namespace trireme::train {

/// CRC-32C (Castagnoli's polynomial, RFC 3720), for the records.
std::uint32_t crc32c(std::string_view bytes);

/// Values by TensorBoard's tag, such as {"train/loss", 0.5}. Single precision in the file.
using Scalars = std::vector<std::pair<std::string, double>>;

class EventFile {
 public:
  /// Creates the folder and in it events.out.tfevents.TIME.HOST.PID.0. @throws CheckpointError
  explicit EventFile(const std::string& folder);
  /// TensorBoard drops what earlier files of the folder have for this and later steps. @throws CheckpointError
  void restart_at(std::int64_t step);
  /// A live TensorBoard sees the values at once. @throws CheckpointError
  void add(std::int64_t step, const Scalars& scalars);
  [[nodiscard]] const std::string& path() const { return file_.path(); }

 private:
  void write(std::string_view message);
  AppendFile file_;
};

}  // namespace trireme::train
