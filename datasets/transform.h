// Converts a decoded image to a model input, as Hugging Face's ViTImageProcessor does: resize to a square (bilinear
// with antialias, rounded to uint8), multiply by 1/255, subtract mean, divide by std. Augmentation comes before: a
// random resized crop and a horizontal flip, each of which depends only on (seed, epoch, sample) (contract C2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::datasets {

inline constexpr const char* kPixelValues = "pixel_values";  ///< the input that holds an image

struct TransformOptions {
  std::int64_t size = 224;                                      ///< pixels per side
  std::vector<double> mean{0.5, 0.5, 0.5}, std{0.5, 0.5, 0.5};  ///< by channel
  bool flip = false;                                            ///< mirrors a sample with probability 1/2
  bool crop = false;
  double crop_low = 0.08, crop_high = 1.0;  ///< fraction of the image's area that the crop covers
};

/// The random choices for one sample.
struct Augmentation {
  bool flip = false;
  bool crop = false;
  std::int64_t top = 0, left = 0, height = 0, width = 0;  ///< crop, in pixels of the image
};

/// Area uniform in [crop_low, crop_high], aspect ratio log-uniform in [3/4, 4/3], position uniform; after ten draws
/// that do not fit, the largest central part with an aspect ratio in that range.
Augmentation draw_augmentation(const TransformOptions& options, std::uint64_t seed, std::int64_t epoch,
                               std::int64_t sample, std::int64_t height, std::int64_t width);

/// uint8 [H, W, C] -> uint8 [size, size, C]; returns the image itself if it already has that size.
at::Tensor resize(const at::Tensor& image, std::int64_t size);
at::Tensor crop(const at::Tensor& image, const Augmentation& where);

/// uint8 [H, W, C] -> float32 [C, H, W], mirrored if `flip`.
at::Tensor normalise(const at::Tensor& image, const TransformOptions& options, bool flip);

}  // namespace trireme::datasets
