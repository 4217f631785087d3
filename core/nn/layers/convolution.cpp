#include "core/nn/layers/convolution.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mean.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/planned_device.h"

namespace trireme::nn {
namespace {

/// Checks that a window of this reach fits into x [B, channels, H, W]. @throws ConfigError
void check_input(const Layer& layer, const at::Tensor& x, std::optional<std::int64_t> channels, std::int64_t reach) {
  const auto least = std::max<std::int64_t>(1, reach);
  const bool fits =
      x.dim() == 4 && x.size(1) == channels.value_or(x.size(1)) && x.size(2) >= least && x.size(3) >= least;
  if (fits) return;
  throw ConfigError(fmt::format(
      "\"{}\" takes [samples, {}channels, at least {} rows, at least {} columns], but its input has the shape [{}]",
      layer.path(), channels ? fmt::format("{} ", *channels) : "", least, least, fmt::join(x.sizes(), ", ")));
}

/// oneDNN's kernel for AVX2 writes past the end of its buffer in the backward pass of such a convolution, which reads
/// one pixel in stride^2 (LibTorch 2.11; seen with fewer than 8 channels).
bool is_corrupted_by_avx2(const Conv2d::Options& o) {
  return o.kernel == 1 && o.stride > 1 && o.padding == 0 && o.in / o.groups % 8 != 0;
}

}  // namespace

Conv2d::Conv2d(const Options& options) : options_(options) {
  const auto& o = options_;
  TRIREME_REQUIRE(o.in > 0 && o.out > 0 && o.groups > 0 && o.in % o.groups == 0 && o.out % o.groups == 0,
                  "a convolution of {} -> {} channels cannot have {} groups", o.in, o.out, o.groups);
  TRIREME_REQUIRE(o.kernel > 0 && o.stride > 0 && o.padding >= 0 && o.dilation > 0,
                  "invalid convolution: kernel {}, stride {}, padding {}, dilation {}", o.kernel, o.stride, o.padding,
                  o.dilation);
  const auto fan_in = o.in / o.groups * o.kernel * o.kernel;
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  declare("weight", weight, {o.out, o.in / o.groups, o.kernel, o.kernel}, o.init.value_or(Init::uniform(-bound, bound)),
          o.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  if (o.bias) declare("bias", bias, {o.out}, Init::uniform(-bound, bound));
}

at::Tensor Conv2d::compute(const at::Tensor& x, const Context&) {
  const auto& o = options_;
  check_input(*this, x, o.in, o.dilation * (o.kernel - 1) + 1 - 2 * o.padding);
  const auto format = x.suggest_memory_format();
  // A weight of another format is converted here once: the kernels would do so again in the backward pass.
  const auto formatted = weight.contiguous(format);
  const bool subsamples = type_of(x.device()) == c10::kCPU && is_corrupted_by_avx2(o);
  const auto subsampled = subsamples ? x.slice(2, 0, {}, o.stride).slice(3, 0, {}, o.stride).contiguous(format) : x;
  return at::conv2d(subsampled, formatted, bias, subsamples ? 1 : o.stride, o.padding, o.dilation, o.groups);
}

MaxPool2d::MaxPool2d(const Options& options) : options_(options) {
  const auto& o = options_;
  TRIREME_REQUIRE(o.kernel > 0 && o.stride.value_or(1) > 0 && o.padding >= 0 && o.padding <= o.kernel / 2,
                  "invalid max-pool: kernel {}, stride {}, padding {}", o.kernel, o.stride.value_or(o.kernel),
                  o.padding);
}

at::Tensor MaxPool2d::compute(const at::Tensor& x, const Context&) {
  const auto& o = options_;
  check_input(*this, x, {}, o.kernel - 2 * o.padding);
  return at::max_pool2d(x, o.kernel, o.stride.value_or(o.kernel), o.padding);
}

at::Tensor GlobalAveragePool::compute(const at::Tensor& x, const Context&) {
  check_input(*this, x, {}, 1);
  return x.mean({2, 3});
}

}  // namespace trireme::nn
