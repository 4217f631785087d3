// Draws by name (contract C2): element e of parameter `name` is a function of (seed, name, e) alone, so a rank draws
// just the slice it owns and every layout starts from the same weights.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>

#include "core/shard/placement.h"

namespace trireme::shard {

/// How a parameter starts.
struct Init {
  enum class Kind { zeros, ones, normal, trunc_normal, uniform } kind = Kind::zeros;
  double a = 0;  ///< normal, trunc_normal: mean; uniform: low
  double b = 0;  ///< normal, trunc_normal: standard deviation; uniform: high

  static Init zeros() { return {Kind::zeros, 0, 0}; }
  static Init ones() { return {Kind::ones, 0, 0}; }
  static Init normal(double mean, double std) { return {Kind::normal, mean, std}; }
  /// Normal, cut at two standard deviations (by the inverse distribution function: one uniform an element).
  static Init trunc_normal(double mean, double std) { return {Kind::trunc_normal, mean, std}; }
  static Init uniform(double low, double high) { return {Kind::uniform, low, high}; }
};

/// The rank's slice, drawn in double and rounded to `dtype`, on `device`.
at::Tensor draw(const Init& init, std::uint64_t seed, const Placement& placement, at::ScalarType dtype,
                c10::Device device);

}  // namespace trireme::shard
