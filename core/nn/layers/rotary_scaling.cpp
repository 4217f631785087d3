#include "core/nn/layers/rotary_scaling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

double dynamic_theta(const RotaryScaling& s, std::int64_t head_size, double theta, std::int64_t tokens) {
  const auto size = static_cast<double>(head_size), original = static_cast<double>(*s.original_positions);
  const auto longest = std::max(static_cast<double>(tokens), original);
  return theta * std::pow(*s.factor * longest / original - (*s.factor - 1), size / (size - 2));
}

at::Tensor llama3(const RotaryScaling& s, const at::Tensor& plain) {
  const auto original = static_cast<double>(*s.original_positions);
  const auto wavelengths = 2 * std::numbers::pi * plain.reciprocal();
  const auto divided = plain / *s.factor;
  const auto kept = (original / wavelengths - *s.low_freq_factor) / (*s.high_freq_factor - *s.low_freq_factor);
  const auto between = (1 - kept) * divided + kept * plain;
  return at::where(wavelengths.gt(original / *s.low_freq_factor), divided,
                   at::where(wavelengths.lt(original / *s.high_freq_factor), plain, between));
}

at::Tensor yarn(const RotaryScaling& s, const at::Tensor& plain, std::int64_t head_size, double theta) {
  const auto size = static_cast<double>(head_size);
  // The feature that turns so often in original_positions tokens.
  const auto feature = [&](double turns) {
    return size * std::log(static_cast<double>(*s.original_positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  auto low = feature(s.beta_fast.value_or(32)), high = feature(s.beta_slow.value_or(1));
  if (s.truncate.value_or(true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  const auto divided = at::clamp((at::arange(head_size / 2, plain.options()) - low) / (high - low), 0, 1);
  return plain / *s.factor * divided + plain * (1 - divided);
}

}  // namespace

at::Tensor rotary_frequencies(const RotaryScaling& s, std::int64_t head_size, double theta, std::int64_t tokens,
                              const at::TensorOptions& options) {
  if (s.type == "dynamic") theta = dynamic_theta(s, head_size, theta, tokens);
  const auto plain = at::pow(theta, at::arange(0, head_size, 2, options) / head_size).reciprocal();
  if (s.type == "default" || s.type == "dynamic") return plain;
  if (s.type == "linear") return plain / *s.factor;
  if (s.type == "llama3") return llama3(s, plain);
  TRIREME_CHECK(s.type == "yarn", "no rotary positions have the type {}", s.type);
  return yarn(s, plain, head_size, theta);
}

double rotary_amplitude(const RotaryScaling& s) {
  if (s.type != "yarn") return 1;
  if (s.attention_factor) return *s.attention_factor;
  const auto grown = [&](double scale) { return *s.factor <= 1 ? 1 : 0.1 * scale * std::log(*s.factor) + 1; };
  const auto scale = s.mscale.value_or(0), of_all = s.mscale_all_dim.value_or(0);
  return scale != 0 && of_all != 0 ? grown(scale) / grown(of_all) : grown(1);
}

}  // namespace trireme::nn
