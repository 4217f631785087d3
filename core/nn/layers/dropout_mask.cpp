#include "core/nn/layers/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>

#include "core/base/error.h"
#include "core/base/random_lanes.h"
#include "core/base/vector_widths.h"
#include "core/nn/layers/own_operator.h"

namespace trireme::nn {
namespace {

using random::kLanes;

/// Draws elements 4 * quad to 4 * (quad + kLanes) - 1 of a sample.
TRIREME_VECTOR_WIDTHS void draw_mask_lanes(std::uint64_t key, std::uint64_t sample, std::uint64_t quad,
                                           std::uint64_t threshold, bool* out) {
  random::LaneBits bits;
  random::philox_lanes(key, sample, quad, bits);
  // p < 1, so the threshold is at most 2^32 - 1 + (p rounded up). The comparison uses 32 bits where the threshold fits.
  const auto bound = static_cast<std::uint32_t>(std::min<std::uint64_t>(threshold, 0xFFFFFFFFULL));
  const bool none = threshold > 0xFFFFFFFFULL;
  for (int i = 0; i < kLanes; ++i) {
    out[4 * i] = bits.v[0][i] >= bound && !none;
    out[4 * i + 1] = bits.v[1][i] >= bound && !none;
    out[4 * i + 2] = bits.v[2][i] >= bound && !none;
    out[4 * i + 3] = bits.v[3][i] >= bound && !none;
  }
}

/// Draws elements [begin, end) of one sample's full tensor.
void draw_mask_run(std::uint64_t key, std::uint64_t sample, std::uint64_t threshold, std::int64_t begin,
                   std::int64_t end, bool* out) {
  constexpr std::int64_t kBlock = 4 * kLanes;
  bool block[kBlock];
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t first = at / kBlock * kBlock;
    const std::int64_t stop = std::min(first + kBlock, end);
    const bool whole = first == at && stop == first + kBlock;
    draw_mask_lanes(key, sample, static_cast<std::uint64_t>(first / 4), threshold, whole ? out : block);
    if (!whole) std::copy(block + (at - first), block + (stop - first), out);
    out += stop - at;
    at = stop;
  }
}

/// The kernel of kDrawMask on the host. @pre row > 0
void draw_on_host(at::Tensor& mask, const at::Tensor& sample_ids, std::int64_t key, std::int64_t threshold,
                  std::int64_t offset, std::int64_t row, std::int64_t stride) {
  if (mask.is_meta()) return;  // it has no values
  const auto ids = sample_ids.cpu().contiguous();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const std::int64_t count = mask.size(1);
  auto drawn = mask.is_cpu() ? mask : at::empty(mask.sizes(), at::kBool);
  auto* out = drawn.mutable_data_ptr<bool>();
  // Split by element over all samples, so that the threads share one large sample too.
  at::parallel_for(0, drawn.numel(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t sample = at / count, i = at % count;
      const std::int64_t column = i % row;
      const std::int64_t size = std::min({end - at, row - column, count - i});
      const std::int64_t full = offset + i / row * stride + column;
      draw_mask_run(std::bit_cast<std::uint64_t>(key), static_cast<std::uint64_t>(id[sample]),
                    static_cast<std::uint64_t>(threshold), full, full + size, out + at);
      at += size;
    }
  });
  if (!mask.is_cpu()) mask.copy_(drawn, /*non_blocking=*/true);
}

}  // namespace

at::Tensor dropout_mask(std::uint64_t key, double p, const at::Tensor& sample_ids, const Elements& elements,
                        c10::Device device) {
  TRIREME_CHECK(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p);
  TRIREME_CHECK(sample_ids.defined() && sample_ids.scalar_type() == at::kLong,
                "a dropout mask needs the sample ids as int64");
  static const auto draw = own_operator<DrawMask>(kDrawMask);
  auto mask = at::empty({sample_ids.numel(), elements.count}, at::TensorOptions(at::kBool).device(device));
  draw.call(mask, sample_ids, std::bit_cast<std::int64_t>(key), static_cast<std::int64_t>(dropout_threshold(p)),
            elements.offset, elements.row == 0 ? std::max<std::int64_t>(elements.count, 1) : elements.row,
            elements.stride);
  return mask;
}

}  // namespace trireme::nn

TORCH_LIBRARY(trireme, library) {
  library.def(
      "draw_dropout_mask_(Tensor(a!) mask, Tensor sample_ids, int key, int threshold, int offset, int row, int stride) "
      "-> ()");
}
TORCH_LIBRARY_IMPL(trireme, CompositeExplicitAutograd, library) {
  library.impl("draw_dropout_mask_", trireme::nn::draw_on_host);
}
