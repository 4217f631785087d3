#include "core/base/files/digest.h"

#include <zlib.h>

#include <algorithm>

namespace trireme {
namespace {

constexpr std::uint64_t kSmallestBlock = std::uint64_t{64} << 10, kMostBlocks = 4096;

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size) {
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(data), size));
}

std::uint64_t block_bytes_for(std::uint64_t file_bytes) {
  auto out = kSmallestBlock;
  while (file_bytes / out >= kMostBlocks) out *= 2;
  return out;
}

Digester::Digester(std::uint64_t expected) {
  const auto block = block_bytes_for(expected);
  if (expected > block) digest_.block_bytes = block;
}

void Digester::add(const void* data, std::size_t size) {
  const auto* at = static_cast<const std::byte*>(data);
  while (size > 0) {
    auto piece = size;
    if (const auto block = digest_.block_bytes; block > 0)
      piece = std::min<std::size_t>(piece, block - digest_.bytes % block);
    digest_.crc32 = crc32(digest_.crc32, at, piece);
    digest_.bytes += piece;
    if (digest_.block_bytes > 0 && digest_.bytes % digest_.block_bytes == 0) digest_.sums.push_back(digest_.crc32);
    at += piece;
    size -= piece;
  }
}

FileDigest Digester::finish() {
  if (digest_.block_bytes > 0 && digest_.bytes % digest_.block_bytes != 0) digest_.sums.push_back(digest_.crc32);
  return digest_;
}

}  // namespace trireme
