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

// The counters of random::philox() for each kind of choice. A new kind goes to the end: a resumed run must go on with
// the draws of its first part.
enum Stream : std::uint64_t { kFlip, kCrop, kOperations, kErases, kErased };

/// Where a random rectangle lies: fractions of the image's area, and ratios of width to height.
struct RectangleLimits {
  double low_area, high_area;
  double low_ratio, high_ratio;
  std::int64_t smaller;  ///< by at least this many pixels than the image, in both directions
};

constexpr std::int64_t kMostAspectRatio = 50;
constexpr double kLowRatio = 3.0 / 4.0, kHighRatio = 4.0 / 3.0;
constexpr RectangleLimits kErasedLimits{0.02, 0.33, 1 / 3.3, 1 / 0.3, 1};

Rectangle central(std::int64_t height, std::int64_t width) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  Rectangle out{0, 0, height, width};
  if (ratio < kLowRatio) out.height = std::lround(static_cast<double>(width) / kLowRatio);
  if (ratio > kHighRatio) out.width = std::lround(static_cast<double>(height) * kHighRatio);
  out.top = (height - out.height) / 2;
  out.left = (width - out.width) / 2;
  return out;
}

/// Unset after ten draws that do not fit.
std::optional<Rectangle> draw_rectangle(const RectangleLimits& limits, std::uint64_t key, Stream stream,
                                        std::int64_t height, std::int64_t width) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (std::uint64_t attempt = 0; attempt < 10; ++attempt) {
    const auto bits = random::philox(key, stream, attempt);
    const auto between = [&](int word, double low, double high) {
      return low + (high - low) * random::to_unit(bits.v[word]);
    };
    const double part = area * between(0, limits.low_area, limits.high_area);
    const double ratio = std::exp(between(1, std::log(limits.low_ratio), std::log(limits.high_ratio)));
    Rectangle out;
    out.width = std::lround(std::sqrt(part * ratio));
    out.height = std::lround(std::sqrt(part / ratio));
    if (out.width < 1 || out.height < 1 || out.width > width - limits.smaller || out.height > height - limits.smaller)
      continue;
    out.top = static_cast<std::int64_t>(between(2, 0, static_cast<double>(height - out.height + 1)));
    out.left = static_cast<std::int64_t>(between(3, 0, static_cast<double>(width - out.width + 1)));
    return out;
  }
  return std::nullopt;
}

}  // namespace

Augmentation draw_augmentation(const TransformOptions& options, std::uint64_t seed, std::int64_t epoch,
                               std::int64_t sample, std::int64_t height, std::int64_t width) {
  const auto key =
      random::mix(random::mix(random::mix(seed, random::hash("augment")), static_cast<std::uint64_t>(epoch)),
                  static_cast<std::uint64_t>(sample));
  Augmentation out;
  if (options.flip) out.flip = (random::philox(key, kFlip, 0).v[0] & 1U) != 0;
  if (options.crop) {
    const RectangleLimits limits{options.crop_low, options.crop_high, kLowRatio, kHighRatio, 0};
    out.crop = draw_rectangle(limits, key, kCrop, height, width).value_or(central(height, width));
  }
  out.operations = draw_operations(key, kOperations, options.rand_augment, options.rand_augment_magnitude);
  if (random::uniform(key, 0, kErases) < options.random_erasing)
    out.erased = draw_rectangle(kErasedLimits, key, kErased, options.size.height, options.size.width);
  return out;
}

at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  if (image.size(0) == height && image.size(1) == width) return image;
  // [H, W, C] viewed as channels-last [1, C, H, W], for the kernel that works in uint8 pass by pass, as Pillow does.
  const auto planes = image.permute({2, 0, 1}).unsqueeze(0);
  const auto out = at::_upsample_bilinear2d_aa(planes, at::IntArrayRef({height, width}), false, std::nullopt);
  return out.squeeze(0).permute({1, 2, 0}).contiguous();
}

at::Tensor crop(const at::Tensor& image, const Rectangle& part) {
  return image.narrow(0, part.top, part.height).narrow(1, part.left, part.width).clone(at::MemoryFormat::Contiguous);
}

at::Tensor fit(const at::Tensor& image, const TransformOptions& options) {
  const auto size = options.size;
  if (!options.resize_shorter) return resize(image, size.height, size.width);
  const auto shorter = std::min(image.size(0), image.size(1));
  // Of a line of pixels only the middle is used, and the whole, resized, would not fit into memory.
  const auto most = shorter * kMostAspectRatio;
  if (const auto height = std::min(image.size(0), most), width = std::min(image.size(1), most);
      height < image.size(0) || width < image.size(1))
    return fit(crop(image, {(image.size(0) - height) / 2, (image.size(1) - width) / 2, height, width}), options);
  // Integer division for torchvision's int(), and half to even for Python's round().
  const auto scaled = [&](std::int64_t side) { return *options.resize_shorter * side / shorter; };
  const auto half = [](std::int64_t rest) { return std::lrint(static_cast<double>(rest) / 2); };
  const auto height = scaled(image.size(0)), width = scaled(image.size(1));
  return crop(resize(image, height, width),
              {half(height - size.height), half(width - size.width), size.height, size.width});
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

void erase(const at::Tensor& values, const Rectangle& part) {
  values.narrow(1, part.top, part.height).narrow(2, part.left, part.width).zero_();
}

at::Tensor model_input(const at::Tensor& image, const TransformOptions& options, const Augmentation& chance) {
  auto changed = image;
  auto flip = chance.flip;
  if (flip && !chance.operations.empty()) {  // otherwise the flip is a part of the normalisation
    changed = image.flip({1});
    flip = false;
  }
  for (const auto& operation : chance.operations) changed = apply_operation(changed, operation);
  auto values = normalise(changed, options, flip);
  if (chance.erased) erase(values, *chance.erased);
  return values;
}

}  // namespace trireme::datasets
