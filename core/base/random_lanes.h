// random::philox() for consecutive counters in SIMD lanes: plain loops that the compiler vectorises. The words are
// integers, so they are the same for every vector width.
#pragma once

#include <cstdint>

#include "core/base/random.h"

namespace trireme::random {

/// Number of parallel calls. With 16, GCC unrolls the loops instead of vectorising them, at a third of the speed.
constexpr int kLanes = 32;

/// Word w of philox(key, high, low + lane) is at v[w][lane].
struct LaneBits {
  std::uint32_t v[4][kLanes];
};

/// Call this from a function with TRIREME_VECTOR_WIDTHS; it is compiled for the vector widths of that function.
[[gnu::always_inline]] inline void philox_lanes(std::uint64_t key, std::uint64_t high, std::uint64_t low,
                                                LaneBits& bits) {
  auto& [c0, c1, c2, c3] = bits.v;
  for (int i = 0; i < kLanes; ++i) {
    const std::uint64_t counter = low + static_cast<std::uint64_t>(i);
    c0[i] = static_cast<std::uint32_t>(counter);
    c1[i] = static_cast<std::uint32_t>(counter >> 32);
    c2[i] = static_cast<std::uint32_t>(high);
    c3[i] = static_cast<std::uint32_t>(high >> 32);
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const std::uint64_t p0 = kPhiloxMultiplier0 * c0[i];
      const std::uint64_t p1 = kPhiloxMultiplier1 * c2[i];
      c0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(p1);
      c2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
}

}  // namespace trireme::random
