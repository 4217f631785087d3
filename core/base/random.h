// Random numbers by name (contract C2): a draw depends on its purpose, never on which rank draws it or on earlier
// draws. Counter-based: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), which
// CUDA and PyTorch use as well.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#if defined(__CUDACC__)
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme::random {

/// FNV-1a, 64 bits: a stable hash of a name, the same on every machine.
constexpr std::uint64_t hash(std::string_view name) {
  std::uint64_t h = 14695981039346656037ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return h;
}

/// Mixes two numbers into one (splitmix64's finalizer), to combine a seed and a name into one key; the next number is
/// mixed into the result, and so on.
template <class Number, class... More>
constexpr std::uint64_t mix(std::uint64_t a, Number b, More... more) {
  static_assert(std::is_integral_v<Number>);
  std::uint64_t x = a + 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(b) + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
  if constexpr (sizeof...(more) > 0) return mix(x, more...);
  return x;
}

constexpr int kPhiloxRounds = 10;
constexpr std::uint64_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kPhiloxKeyStep0 = 0x9E3779B9, kPhiloxKeyStep1 = 0xBB67AE85;

struct Four {
  std::uint32_t v[4];
};

/// Four independent 32-bit words for (key, high, low). The same call gives the same bits on CPU and GPU.
TRIREME_HOST_DEVICE constexpr Four philox(std::uint64_t key, std::uint64_t high, std::uint64_t low) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  Four c{{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
          static_cast<std::uint32_t>(high >> 32)}};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = kPhiloxMultiplier0 * c.v[0];
    const std::uint64_t p1 = kPhiloxMultiplier1 * c.v[2];
    c = Four{{static_cast<std::uint32_t>(p1 >> 32) ^ c.v[1] ^ k0, static_cast<std::uint32_t>(p1),
              static_cast<std::uint32_t>(p0 >> 32) ^ c.v[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  return c;
}

/// Converts a word to a double in (0, 1): never 0, so that its logarithm is finite.
TRIREME_HOST_DEVICE constexpr double to_unit(std::uint32_t word) {
  return (static_cast<double>(word) + 0.5) * (1.0 / 4294967296.0);
}

/// Uniform in (0, 1): number `index` of the stream `key`.
constexpr double uniform(std::uint64_t key, std::uint64_t index, std::uint64_t high = 0) {
  return to_unit(philox(key, high, index >> 2).v[index & 3]);
}

/// A permutation of 0..n-1 by Fisher-Yates with the stream `key`. Depends only on (key, n).
std::vector<std::int64_t> permutation(std::uint64_t key, std::int64_t n);

}  // namespace trireme::random
