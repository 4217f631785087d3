// FileBlocks: verifies those blocks of a file that a reader needs, each once (core/base/files/digest.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/files/digest.h"

namespace trireme::checkpoint {

class FileBlocks {
 public:
  /// @throws CheckpointError when the file does not have the size of `listed`
  FileBlocks(std::string path, FileDigest listed);

  /// Reads the blocks that hold the bytes [begin, end) of the file, but for those that were verified before.
  /// @throws CheckpointError for the first one that differs from its sum; the message gives its bytes
  void verify(std::uint64_t begin, std::uint64_t end);
  /// Closes the file, which verify() opens again: a reader of many has only so many descriptors.
  void close() { file_ = FileDescriptor(); }
  /// Verifies one of `count` equal parts of the file.
  void verify_part(int index, int count);
  /// Bytes that were read so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void open();
  void verify_block(std::uint64_t block);

  std::string path_;
  FileDigest listed_;
  std::vector<bool> is_verified_;  ///< of each block
  FileDescriptor file_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace trireme::checkpoint
