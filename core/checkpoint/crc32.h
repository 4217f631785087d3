// CRC-32 (the polynomial of ISO 3309, zip and zlib), eight bytes a step (Kounavis and Berry, "A systematic approach to
// building high performance software-based CRC generators", 2005). Any tool can check what we wrote.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::checkpoint {

/// Goes on from `crc` (0 at the start), so that a file can be summed piece by piece.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size);

}  // namespace trireme::checkpoint
