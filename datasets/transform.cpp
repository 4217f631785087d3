#include "datasets/transform.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>

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
  const auto key = random::mix(seed, random::hash("augment"), epoch, sample);
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
  // Its output is channels-last only if the strides say so of all four dimensions, also of the first one.
  const auto planes = image.contiguous().unsqueeze(0).permute({0, 3, 1, 2});
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

at::Tensor mirror(const at::Tensor& image) {
  const auto height = image.size(0), width = image.size(1), channels = image.size(2);
  const auto source = image.contiguous();
  auto out = at::empty(image.sizes(), at::kByte);
  const auto* from = source.const_data_ptr<unsigned char>();
  auto* to = out.mutable_data_ptr<unsigned char>();
  for (std::int64_t y = 0; y < height; ++y, from += width * channels)
    for (std::int64_t x = width; x-- > 0;)
      for (std::int64_t c = 0; c < channels; ++c) *to++ = from[x * channels + c];
  return out;
}

at::Tensor augment(const at::Tensor& image, const Augmentation& chance) {
  auto out = chance.flip ? mirror(image) : image;
  for (const auto& operation : chance.operations) out = apply_operation(out, operation);
  return out;
}

at::Tensor Normalise::operator()(const at::Tensor& images) const {
  TRIREME_CHECK(images.dim() == 4 && images.size(3) == static_cast<std::int64_t>(mean_.size()) &&
                    images.scalar_type() == at::kByte,
                "the normalisation takes uint8 [N, H, W, {}]", mean_.size());
  return images.is_cpu() ? on_cpu(images) : on_device(images);
}

at::Tensor Normalise::on_cpu(const at::Tensor& images) const {
  const auto count = images.size(0), height = images.size(1), width = images.size(2), channels = images.size(3);
  const auto by_image = images[0].is_contiguous() ? images : images.contiguous();
  auto out = at::empty({count, channels, height, width}, at::kFloat);
  auto* plane = out.mutable_data_ptr<float>();
  // The 256 values of each channel are computed once and then looked up.
  std::vector<std::array<float, 256>> tables(mean_.size());
  for (std::size_t c = 0; c < tables.size(); ++c)
    for (std::size_t value = 0; value < 256; ++value)
      tables[c][value] = static_cast<float>((static_cast<double>(value) / 255.0 - mean_[c]) / std_[c]);
  for (std::int64_t n = 0; n < count; ++n) {
    const auto* image = by_image.const_data_ptr<unsigned char>() + n * by_image.stride(0);
    for (std::size_t c = 0; c < tables.size(); ++c, plane += height * width)
      for (std::int64_t i = 0; i < height * width; ++i)
        plane[i] = tables[c][image[i * channels + static_cast<std::int64_t>(c)]];
  }
  return out;
}

at::Tensor Normalise::on_device(const at::Tensor& images) const {
  at::Tensor constants;
  {
    const std::lock_guard lock(mutex_);
    if (!constants_.defined() || constants_.device() != images.device())
      constants_ = (at::stack({at::tensor(mean_, at::kDouble), at::tensor(std_, at::kDouble)}) * 255)
                       .to(at::kFloat)
                       .view({2, -1, 1, 1})
                       .to(images.device());
    constants = constants_;
  }
  return at::sub(images.permute({0, 3, 1, 2}).contiguous(), constants[0]).div_(constants[1]);
}

at::Tensor box_mask(const at::Tensor& boxes, std::int64_t height, std::int64_t width) {
  const auto within = [&](std::int64_t from, std::int64_t size) {
    const auto at = at::arange(size, boxes.options());
    return at.ge(boxes.narrow(1, from, 1)).logical_and_(at.lt(boxes.narrow(1, from + 1, 1)));
  };
  return within(0, height).unsqueeze(2).logical_and(within(2, width).unsqueeze(1)).unsqueeze(1);
}

}  // namespace trireme::datasets
