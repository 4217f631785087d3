// FileDigest: the size and the checksums of a file, for a manifest.
//
// A file of more than one block also has a checksum for each, so that a reader can verify the bytes it needs without
// reading the others. sums[k] is the CRC-32 of the file's first k + 1 blocks: with sums[k - 1] as the start (0 for the
// first), the CRC-32 of block k alone has to give sums[k]. One pass over the bytes therefore gives them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {

/// CRC-32 (the polynomial of ISO 3309, zip and zlib), with which common tools can verify our files. Continues from
/// `crc` (0 at the start), so a file can be summed in pieces.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size);

/// The size of the blocks of a file of so many bytes: a power of two from 64 KiB on, for at most 4,096 blocks.
std::uint64_t block_bytes_for(std::uint64_t file_bytes);

struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
  /// 0: the file has no sums, and is one block.
  std::uint64_t block_bytes = 0;
  std::vector<std::uint32_t> sums{};  ///< of each block; the last one is crc32
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

/// Computes a digest from a file's bytes, in order.
class Digester {
 public:
  /// `expected`: the size of the file if known; else 0, and it is one block.
  explicit Digester(std::uint64_t expected);
  void add(const void* data, std::size_t size);
  /// Of what was added so far.
  [[nodiscard]] std::uint64_t bytes() const { return digest_.bytes; }
  [[nodiscard]] FileDigest finish();

 private:
  FileDigest digest_;
};

}  // namespace trireme
