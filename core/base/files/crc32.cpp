#include "core/base/files/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace trireme {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are read as one little-endian word");

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// Table k: the effect of a byte on the checksum when k more bytes follow it.
// `polynomial`: with its bits reversed.
constexpr Tables make_tables(std::uint32_t polynomial) {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ polynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xFF];
  return tables;
}

constexpr Tables kIeee = make_tables(0xEDB88320U), kCastagnoli = make_tables(0x82F63B78U);

/// A template, so that the tables stay constants in the loop.
template <const Tables& kTables>
std::uint32_t sum(std::uint32_t crc, const void* data, std::size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = kTables[7][word & 0xFF] ^ kTables[6][(word >> 8) & 0xFF] ^ kTables[5][(word >> 16) & 0xFF] ^
          kTables[4][(word >> 24) & 0xFF] ^ kTables[3][(word >> 32) & 0xFF] ^ kTables[2][(word >> 40) & 0xFF] ^
          kTables[1][(word >> 48) & 0xFF] ^ kTables[0][word >> 56];
  }
  for (; size > 0; --size, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size) { return sum<kIeee>(crc, data, size); }
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t size) {
  return sum<kCastagnoli>(crc, data, size);
}

}  // namespace trireme
