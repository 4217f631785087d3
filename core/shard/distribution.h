// How a parameter is initialised, and the values: four neighbouring elements come from the four words of one
// random::philox() call, bitwise equal on the host and in CUDA kernels.
//
// The bits are the same everywhere because only operations that IEEE 754 rounds correctly are used (+, -, *, sqrt,
// conversions from 32-bit integers), in single precision and in a fixed order: no libm, no fused multiply-add. A file
// that includes this must be compiled with -ffp-contract=off, or with -fmad=false by nvcc.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/random.h"

namespace trireme::shard {

/// The initial distribution of a parameter.
struct Init {
  enum class Kind { zeros, ones, normal, trunc_normal, uniform } kind = Kind::zeros;
  double a = 0;  ///< normal, trunc_normal: mean; uniform: low
  double b = 0;  ///< normal, trunc_normal: standard deviation; uniform: high

  static Init zeros() { return {Kind::zeros, 0, 0}; }
  static Init ones() { return {Kind::ones, 0, 0}; }
  static Init normal(double mean, double std) { return {Kind::normal, mean, std}; }
  /// Normal, truncated at two standard deviations, by the inverse distribution function: one word per element.
  static Init trunc_normal(double mean, double std) { return {Kind::trunc_normal, mean, std}; }
  static Init uniform(double low, double high) { return {Kind::uniform, low, high}; }
};

/// Elements 4q to 4q + 3 of a stream.
struct FourValues {
  float v[4];
};

namespace detail {

/// Natural logarithm of a normal number u > 0, accurate to 1 ulp for u <= 1 (Cephes 2.2, logf.c, S. L. Moshier).
TRIREME_HOST_DEVICE inline float log(float u) {
  const auto bits = __builtin_bit_cast(std::int32_t, u);
  const std::int32_t exponent = (bits - 0x3F3504F3) >> 23;  // so that the mantissa is in [sqrt(1/2), sqrt(2))
  const float x = __builtin_bit_cast(float, bits - exponent * (1 << 23)) - 1.0F;
  const float z = x * x, n = static_cast<float>(exponent);
  float y = 7.0376836292e-2F;
  y = y * x - 1.1514610310e-1F;
  y = y * x + 1.1676998740e-1F;
  y = y * x - 1.2420140846e-1F;
  y = y * x + 1.4249322787e-1F;
  y = y * x - 1.6668057665e-1F;
  y = y * x + 2.0000714765e-1F;
  y = y * x - 2.4999993993e-1F;
  y = y * x + 3.3333331174e-1F;
  y = y * x * z;
  y = y + n * -2.12194440e-4F;
  y = y - 0.5F * z;
  return (x + y) + n * 0.693359375F;
}

/// Returns x with its sign flipped if `flip` is 2, and x itself if `flip` is 0.
TRIREME_HOST_DEVICE inline float flip_sign(float x, std::uint32_t flip) {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) ^ (flip << 30));
}

struct Pair {
  float first, second;
};

/// Two standard normal numbers from two words (Box and Muller, 1958); their absolute value is at most 6.56.
TRIREME_HOST_DEVICE inline Pair normal(std::uint32_t for_radius, std::uint32_t for_angle) {
  const float u = static_cast<float>(static_cast<std::int32_t>((for_radius >> 1) | 1)) * 0x1p-31F;  // in (0, 1]
  const float radius = std::sqrt(-2.0F * log(u));
  // The angle, for_angle / 2^32 of a turn, is split into a multiple of a quarter turn and x in [-pi/4, pi/4).
  const std::uint32_t quarter = (for_angle + (1U << 29)) >> 30;
  const float x = static_cast<float>(static_cast<std::int32_t>(for_angle << 2)) * 3.6572952e-10F;  // 2 pi / 2^34
  const float z = x * x;
  // Cephes 2.2, sinf.c.
  const float sine = ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * x + x;
  const float cosine =
      ((2.443315711809948e-5F * z - 1.388731625493765e-3F) * z + 4.166664568298827e-2F) * z * z - 0.5F * z + 1.0F;
  const bool odd = (quarter & 1) != 0;
  return {radius * flip_sign(odd ? sine : cosine, (quarter + 1) & 2),
          radius * flip_sign(odd ? cosine : sine, quarter & 2)};
}

/// A standard normal number truncated at 2, from one word.
TRIREME_HOST_DEVICE inline float trunc_normal(std::uint32_t word) {
  // y is uniform between -erf(sqrt(2)) and erf(sqrt(2)); the number is sqrt(2) times the inverse of erf at y, by the
  // central polynomial of M. Giles ("Approximating the erfinv function", GPU Computing Gems, 2011).
  const float y = static_cast<float>(static_cast<std::int32_t>(word)) * (0.95449974F * 0x1p-31F);
  const float w = -log((1.0F - y) * (1.0F + y)) - 2.5F;
  float p = 2.81022636e-08F;
  p = p * w + 3.43273939e-07F;
  p = p * w - 3.5233877e-06F;
  p = p * w - 4.39150654e-06F;
  p = p * w + 0.00021858087F;
  p = p * w - 0.00125372503F;
  p = p * w - 0.00417768164F;
  p = p * w + 0.246640727F;
  p = p * w + 1.50140941F;
  const float z = p * y * 1.41421356F;
  return z < -2.0F ? -2.0F : z > 2.0F ? 2.0F : z;
}

/// Uniform in (0, 1), from one word: an odd multiple of 2^-24.
TRIREME_HOST_DEVICE inline float uniform(std::uint32_t word) {
  return (static_cast<float>(static_cast<std::int32_t>(word >> 9)) + 0.5F) * 0x1p-23F;
}

}  // namespace detail

/// @pre kind is normal, trunc_normal or uniform
template <Init::Kind kind>
TRIREME_HOST_DEVICE inline FourValues four_values(float a, float b, const random::Four& bits) {
  const auto& w = bits.v;
  if constexpr (kind == Init::Kind::normal) {
    const auto x = detail::normal(w[0], w[1]), y = detail::normal(w[2], w[3]);
    return {{a + b * x.first, a + b * x.second, a + b * y.first, a + b * y.second}};
  } else if constexpr (kind == Init::Kind::trunc_normal) {
    return {{a + b * detail::trunc_normal(w[0]), a + b * detail::trunc_normal(w[1]), a + b * detail::trunc_normal(w[2]),
             a + b * detail::trunc_normal(w[3])}};
  } else {
    const float range = b - a;
    return {{a + range * detail::uniform(w[0]), a + range * detail::uniform(w[1]), a + range * detail::uniform(w[2]),
             a + range * detail::uniform(w[3])}};
  }
}

}  // namespace trireme::shard
