#include "datasets/transform.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/error.h"
#include "core/base/random.h"

namespace trireme::datasets {
namespace {

constexpr double kLowRatio = 3.0 / 4.0, kHighRatio = 4.0 / 3.0;

void central_crop(std::int64_t height, std::int64_t width, Augmentation* out) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  out->height = height;
  out->width = width;
  if (ratio < kLowRatio) out->height = std::lround(static_cast<double>(width) / kLowRatio);
  if (ratio > kHighRatio) out->width = std::lround(static_cast<double>(height) * kHighRatio);
  out->top = (height - out->height) / 2;
  out->left = (width - out->width) / 2;
}

void draw_crop(const TransformOptions& options, std::uint64_t key, std::int64_t height, std::int64_t width,
               Augmentation* out) {
  out->crop = true;
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (std::uint64_t attempt = 0; attempt < 10; ++attempt) {
    const auto bits = random::philox(key, 1, attempt);
    const auto between = [&](int word, double low, double high) {
      return low + (high - low) * random::to_unit(bits.v[word]);
    };
    const double part = area * between(0, options.crop_low, options.crop_high);
    const double ratio = std::exp(between(1, std::log(kLowRatio), std::log(kHighRatio)));
    out->width = std::lround(std::sqrt(part * ratio));
    out->height = std::lround(std::sqrt(part / ratio));
    if (out->width < 1 || out->height < 1 || out->width > width || out->height > height) continue;
    out->top = static_cast<std::int64_t>(between(2, 0, static_cast<double>(height - out->height + 1)));
    out->left = static_cast<std::int64_t>(between(3, 0, static_cast<double>(width - out->width + 1)));
    return;
  }
  central_crop(height, width, out);
}

}  // namespace

Augmentation draw_augmentation(const TransformOptions& options, std::uint64_t seed, std::int64_t epoch,
                               std::int64_t sample, std::int64_t height, std::int64_t width) {
  const auto key =
      random::mix(random::mix(random::mix(seed, random::hash("augment")), static_cast<std::uint64_t>(epoch)),
                  static_cast<std::uint64_t>(sample));
  Augmentation out;
  if (options.flip) out.flip = (random::philox(key, 0, 0).v[0] & 1U) != 0;
  if (options.crop) draw_crop(options, key, height, width, &out);
  return out;
}

at::Tensor resize(const at::Tensor& image, std::int64_t size) {
  if (image.size(0) == size && image.size(1) == size) return image;
  // [H, W, C] viewed as channels-last [1, C, H, W], for the kernel that works in uint8 pass by pass, as Pillow does.
  const auto planes = image.permute({2, 0, 1}).unsqueeze(0);
  const auto out = at::_upsample_bilinear2d_aa(planes, at::IntArrayRef({size, size}), false, std::nullopt);
  return out.squeeze(0).permute({1, 2, 0}).contiguous();
}

at::Tensor crop(const at::Tensor& image, const Augmentation& where) {
  return image.narrow(0, where.top, where.height).narrow(1, where.left, where.width).contiguous();
}

at::Tensor normalise(const at::Tensor& image, const TransformOptions& options, bool flip) {
  const auto channels = static_cast<std::int64_t>(options.mean.size());
  TRIREME_CHECK(
      image.dim() == 3 && image.size(2) == channels && image.scalar_type() == at::kByte && image.is_contiguous(),
      "the transform takes contiguous uint8 [H, W, {}]", channels);
  const auto height = image.size(0), width = image.size(1);
  auto out = at::empty({channels, height, width}, at::kFloat);
  const auto* in = image.const_data_ptr<unsigned char>();
  auto* planes = out.mutable_data_ptr<float>();
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    // The 256 values are computed once in double and then looked up.
    std::array<float, 256> table{};
    const auto c = static_cast<std::size_t>(channel);
    for (std::size_t value = 0; value < table.size(); ++value)
      table[value] = static_cast<float>((static_cast<double>(value) / 255.0 - options.mean[c]) / options.std[c]);
    for (std::int64_t y = 0; y < height; ++y) {
      const auto* row = in + y * width * channels + channel;
      auto* target = planes + (channel * height + y) * width;
      for (std::int64_t x = 0; x < width; ++x) target[x] = table[row[(flip ? width - 1 - x : x) * channels]];
    }
  }
  return out;
}

}  // namespace trireme::datasets
