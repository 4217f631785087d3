// CRC-32 (the polynomial of ISO 3309, zip and zlib), eight bytes per step (Kounavis and Berry, "A systematic approach
// to building high performance software-based CRC generators", 2005). Common tools can verify our files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::checkpoint {

/// Continues from `crc` (0 at the start), so a file can be summed in pieces.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size);

}  // namespace trireme::checkpoint
