#include "core/nn/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/random_lanes.h"
#include "core/base/vector_widths.h"

namespace trireme::nn {
namespace {

using random::kLanes;

/// Draws elements 4 * quad to 4 * (quad + kLanes) - 1 of a sample.
TRIREME_VECTOR_WIDTHS void keep_lanes(std::uint64_t key, std::uint64_t sample, std::uint64_t quad,
                                      std::uint64_t threshold, bool* out) {
  random::LaneWords words;
  random::philox_lanes(key, sample, quad, words);
  // p < 1, so the threshold is at most 2^32 - 1 + (p rounded up). The comparison uses 32 bits where the threshold fits.
  const auto bound = static_cast<std::uint32_t>(std::min<std::uint64_t>(threshold, 0xFFFFFFFFULL));
  const bool none = threshold > 0xFFFFFFFFULL;
  for (int i = 0; i < kLanes; ++i) {
    out[4 * i] = words.v[0][i] >= bound && !none;
    out[4 * i + 1] = words.v[1][i] >= bound && !none;
    out[4 * i + 2] = words.v[2][i] >= bound && !none;
    out[4 * i + 3] = words.v[3][i] >= bound && !none;
  }
}

/// Draws elements [begin, end) of one sample's full tensor.
void keep_run(std::uint64_t key, std::uint64_t sample, std::uint64_t threshold, std::int64_t begin, std::int64_t end,
              bool* out) {
  constexpr std::int64_t kBlock = 4 * kLanes;
  bool block[kBlock];
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t first = at / kBlock * kBlock;
    const std::int64_t stop = std::min(first + kBlock, end);
    const bool whole = first == at && stop == first + kBlock;
    keep_lanes(key, sample, static_cast<std::uint64_t>(first / 4), threshold, whole ? out : block);
    if (!whole) std::copy(block + (at - first), block + (stop - first), out);
    out += stop - at;
    at = stop;
  }
}

DrawOnDevice draw_on_device = nullptr;

}  // namespace

void draw_masks_by(DrawOnDevice draw) { draw_on_device = draw; }

at::Tensor dropout_mask(std::uint64_t key, double p, const at::Tensor& sample_ids, const Elements& elements,
                        c10::Device device) {
  TRIREME_CHECK(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p);
  TRIREME_CHECK(sample_ids.defined() && sample_ids.scalar_type() == at::kLong,
                "a dropout mask needs the sample ids as int64");
  const std::uint64_t threshold = dropout_threshold(p);
  if (device.is_cuda() && draw_on_device != nullptr) {
    auto mask = at::empty({sample_ids.numel(), elements.count}, at::TensorOptions(at::kBool).device(device));
    draw_on_device(key, threshold, sample_ids, elements, mask);
    return mask;
  }
  const auto ids = sample_ids.cpu().contiguous();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const std::int64_t count = elements.count;
  const std::int64_t row = elements.row == 0 ? std::max<std::int64_t>(count, 1) : elements.row;
  auto mask = at::empty({ids.numel(), count}, at::kBool);
  auto* out = mask.mutable_data_ptr<bool>();
  // Split by element over all samples, so that the threads share one large sample too.
  at::parallel_for(0, ids.numel() * count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t sample = at / count, i = at % count;
      const std::int64_t column = i % row;
      const std::int64_t size = std::min({end - at, row - column, count - i});
      const std::int64_t full = elements.offset + i / row * elements.stride + column;
      keep_run(key, static_cast<std::uint64_t>(id[sample]), threshold, full, full + size, out + at);
      at += size;
    }
  });
  return device.is_cpu() ? mask : mask.to(device, /*non_blocking=*/true);
}

}  // namespace trireme::nn
