// Checksums of files: CRC-32 (the polynomial of ISO 3309, zip and zlib), with which common tools can verify our files,
// and CRC-32C (Castagnoli's polynomial, RFC 3720), which TensorBoard's files have. Both take eight bytes per step
// (Kounavis and Berry, "A systematic approach to building high performance software-based CRC generators", 2005).
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme {

/// Continues from `crc` (0 at the start), so a file can be summed in pieces.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size);
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t size);

}  // namespace trireme
