// The dropout mask (contract C2): whether element `e` of sample `s` is kept in one layer at one step depends only on
// (seed, step, layer, s, e). Data, tensor and pipeline parallelism, recomputation and a resumed run therefore draw the
// same mask. The functions for one element are compiled for the host and for CUDA, with bitwise equal results.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

#include "core/base/random.h"

namespace trireme::nn {

/// The key of the random stream of one layer at one step.
constexpr std::uint64_t dropout_key(std::uint64_t seed, std::int64_t step, std::string_view layer_path) {
  return random::mix(seed, step, random::hash(layer_path));
}

/// Elements 4q to 4q + 3 of a sample's full tensor use the four words of random::philox(key, sample, q). A word w
/// represents the uniform number (w + 0.5) / 2^32, which is at least `p` exactly when w >= dropout_threshold(p).
/// @pre 0 <= p < 1
TRIREME_HOST_DEVICE constexpr std::uint64_t dropout_threshold(double p) {
  const double scaled = p * 4294967296.0 - 0.5;
  if (scaled <= 0) return 0;
  const auto below = static_cast<std::uint64_t>(scaled);
  return static_cast<double>(below) < scaled ? below + 1 : below;
}

/// Which elements of a sample's full (unsharded) tensor a rank holds: local element i is full element
/// offset + (i / row) * stride + i % row.
struct Elements {
  std::int64_t count;       ///< elements of a sample that this rank holds
  std::int64_t offset = 0;  ///< index in the full tensor of the first local element
  std::int64_t row = 0;     ///< length of a contiguous run; 0: all elements are contiguous
  std::int64_t stride = 0;  ///< distance between the starts of two runs in the full tensor

  static Elements all(std::int64_t count) { return {count, 0, count, count}; }
};

/// Bool [samples, elements.count] on `device`: true where the element is kept. `sample_ids`: int64 [samples].
/// @pre 0 <= p < 1
at::Tensor dropout_mask(std::uint64_t key, double p, const at::Tensor& sample_ids, const Elements& elements,
                        c10::Device device);

/// The operator of LibTorch's dispatcher that fills a mask [samples, count] on its device; Elements whose word is at
/// least `threshold` are kept. The host's kernel serves every device for which there is no other; libtrireme_cuda
/// registers one for CUDA when it is loaded.
inline constexpr const char* kDrawMask = "trireme::draw_dropout_mask_";
using DrawMask = void(at::Tensor& mask, const at::Tensor& sample_ids, std::int64_t key, std::int64_t threshold,
                      std::int64_t offset, std::int64_t row, std::int64_t stride);

}  // namespace trireme::nn
