#include "datasets/image_ops.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/base/error.h"

namespace trireme::datasets {
namespace {

/// For each of the 256 values, what it becomes.
using Levels = std::array<unsigned char, 256>;

const unsigned char* bytes_of_image(const at::Tensor& image) {
  TRIREME_CHECK(image.dim() == 3 && (image.size(2) == 1 || image.size(2) == 3) && image.scalar_type() == at::kByte &&
                    image.is_contiguous(),
                "an operation on pixels takes contiguous uint8 [H, W, 1 or 3]");
  return image.const_data_ptr<unsigned char>();
}

/// An image, and the new one that an operation makes of it.
struct Canvas {
  explicit Canvas(const at::Tensor& image)
      : in(bytes_of_image(image)),
        height(image.size(0)),
        width(image.size(1)),
        channels(image.size(2)),
        result(at::empty_like(image)),
        out(result.mutable_data_ptr<unsigned char>()) {}

  const unsigned char* in;
  std::int64_t height, width, channels;
  at::Tensor result;
  unsigned char* out;
};

unsigned char to_level(float value) { return static_cast<unsigned char>(std::min(255.0F, std::max(0.0F, value))); }

float grey_of(const unsigned char* rgb) {
  return std::floor(0.2989F * static_cast<float>(rgb[0]) + 0.587F * static_cast<float>(rgb[1]) +
                    0.114F * static_cast<float>(rgb[2]));
}

template <class LevelOf>
Levels levels(LevelOf level_of) {
  Levels out{};
  for (int value = 0; value < 256; ++value) out[static_cast<std::size_t>(value)] = level_of(value);
  return out;
}

at::Tensor map_levels(const at::Tensor& image, const Levels& table) {
  Canvas canvas(image);
  for (std::int64_t i = 0; i < image.numel(); ++i) canvas.out[i] = table[canvas.in[i]];
  return canvas.result;
}

/// Maps each channel by levels_of(its histogram).
template <class LevelsOf>
at::Tensor map_channels(const at::Tensor& image, LevelsOf levels_of) {
  Canvas canvas(image);
  for (std::int64_t channel = 0; channel < canvas.channels; ++channel) {
    std::array<std::int64_t, 256> histogram{};
    for (std::int64_t i = channel; i < image.numel(); i += canvas.channels) ++histogram[canvas.in[i]];
    const Levels table = levels_of(histogram);
    for (std::int64_t i = channel; i < image.numel(); i += canvas.channels) canvas.out[i] = table[canvas.in[i]];
  }
  return canvas.result;
}

Levels stretched(const std::array<std::int64_t, 256>& histogram) {
  int low = 0, high = 255;
  while (histogram[static_cast<std::size_t>(low)] == 0) ++low;
  while (histogram[static_cast<std::size_t>(high)] == 0) --high;
  const float scale = static_cast<float>(high - low) * (1.0F / 255.0F);
  return levels([&](int value) {
    return low == high ? static_cast<unsigned char>(value) : to_level(static_cast<float>(value - low) / scale);
  });
}

/// Pillow's integer arithmetic, which torchvision follows, too. The pixels with the highest value do not count.
Levels equalized(const std::array<std::int64_t, 256>& histogram) {
  auto highest = histogram.end() - 1;
  while (*highest == 0) --highest;
  const auto step = std::accumulate(histogram.begin(), highest, std::int64_t{0}) / 255;
  std::int64_t below = step / 2;
  return levels([&](int value) {
    if (step == 0) return static_cast<unsigned char>(value);
    const auto level = std::min<std::int64_t>(255, below / step);
    below += histogram[static_cast<std::size_t>(value)];
    return static_cast<unsigned char>(level);
  });
}

}  // namespace

at::Tensor warp(const at::Tensor& image, const AffineMap& source) {
  Canvas canvas(image);
  const auto middle = [](std::int64_t side) { return static_cast<double>(side - 1) / 2; };
  const double right = middle(canvas.width), down = middle(canvas.height);
  // Positions along a row in units of 2^-32 pixels: the loop has integers only.
  const auto fixed = [](double pixels) { return std::llround(pixels * 4294967296.0); };
  const auto step_x = fixed(source.xx), step_y = fixed(source.yx);
  auto* out = canvas.out;
  for (std::int64_t row = 0; row < canvas.height; ++row) {
    const double y = static_cast<double>(row) - down;
    auto from_x = fixed(-source.xx * right + source.xy * y + source.x0 + right + 0.5);
    auto from_y = fixed(-source.yx * right + source.yy * y + source.y0 + down + 0.5);
    for (std::int64_t column = 0; column < canvas.width; ++column, from_x += step_x, from_y += step_y) {
      const std::int64_t px = from_x >> 32, py = from_y >> 32;
      const bool inside = px >= 0 && px < canvas.width && py >= 0 && py < canvas.height;
      const auto pixel = (py * canvas.width + px) * canvas.channels;
      for (std::int64_t channel = 0; channel < canvas.channels; ++channel)
        *out++ = inside ? canvas.in[pixel + channel] : static_cast<unsigned char>(0);
    }
  }
  return canvas.result;
}

at::Tensor adjust_brightness(const at::Tensor& image, double factor) {
  return map_levels(image, levels([share = static_cast<float>(factor)](int value) {
                      return to_level(static_cast<float>(value) * share);
                    }));
}

at::Tensor adjust_saturation(const at::Tensor& image, double factor) {
  if (image.size(2) == 1) return image;
  Canvas canvas(image);
  const auto share = static_cast<float>(factor), rest = static_cast<float>(1 - factor);
  for (std::int64_t i = 0; i < image.numel(); i += 3) {
    const float grey = rest * grey_of(canvas.in + i);
    for (std::int64_t channel = i; channel < i + 3; ++channel)
      canvas.out[channel] = to_level(static_cast<float>(canvas.in[channel]) * share + grey);
  }
  return canvas.result;
}

at::Tensor adjust_contrast(const at::Tensor& image, double factor) {
  const auto* bytes = bytes_of_image(image);
  const auto channels = image.size(2);
  double sum = 0;
  for (std::int64_t i = 0; i < image.numel(); i += channels)
    sum += channels == 1 ? static_cast<float>(bytes[i]) : grey_of(bytes + i);
  const auto share = static_cast<float>(factor);
  const auto grey = static_cast<float>((1 - factor) * sum / static_cast<double>(image.size(0) * image.size(1)));
  return map_levels(image, levels([&](int value) { return to_level(static_cast<float>(value) * share + grey); }));
}

at::Tensor adjust_sharpness(const at::Tensor& image, double factor) {
  if (image.size(0) <= 2 || image.size(1) <= 2) return image;
  Canvas canvas(image);
  std::copy(canvas.in, canvas.in + image.numel(), canvas.out);
  const auto rest = static_cast<float>(1 - factor);
  const auto next = canvas.channels, row = canvas.width * canvas.channels;
  for (std::int64_t y = 1; y + 1 < canvas.height; ++y)
    for (std::int64_t i = y * row + next; i < (y + 1) * row - next; ++i) {
      const auto* pixel = canvas.in + i;
      // The blur weighs the pixel by 5/13 and its eight neighbours by 1/13.
      const int sum = pixel[-row - next] + pixel[-row] + pixel[next - row] + pixel[-next] + 5 * pixel[0] + pixel[next] +
                      pixel[row - next] + pixel[row] + pixel[row + next];
      const int blurred = (2 * sum + 13) / 26;
      canvas.out[i] = to_level(static_cast<float>(pixel[0]) + rest * static_cast<float>(blurred - pixel[0]));
    }
  return canvas.result;
}

at::Tensor posterize(const at::Tensor& image, int bits) {
  return map_levels(image,
                    levels([mask = 0xff00 >> bits](int value) { return static_cast<unsigned char>(value & mask); }));
}

at::Tensor solarize(const at::Tensor& image, double threshold) {
  return map_levels(
      image, levels([&](int value) { return static_cast<unsigned char>(value >= threshold ? 255 - value : value); }));
}

at::Tensor autocontrast(const at::Tensor& image) { return map_channels(image, stretched); }

at::Tensor equalize(const at::Tensor& image) { return map_channels(image, equalized); }

}  // namespace trireme::datasets
