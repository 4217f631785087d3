// Converts a decoded image to a model input. The steps that are the same in every epoch: resize to the final height and
// width, as Hugging Face's ViTImageProcessor does, or the shorter side and a central crop, as torchvision's Resize and
// CenterCrop do (bilinear with antialias, rounded to uint8). The last ones: multiply by 1/255, subtract mean, divide by
// std.
//
// Augmentation follows the order of torchvision's recipes: a random resized crop takes the place of the resize; then a
// horizontal flip and RandAugment (rand_augment.h) at the final size; after normalisation, random erasing (Zhong et
// al., "Random erasing data augmentation", 2020). Each depends only on (seed, epoch, sample) (contract C2), and on none
// of the others: turning one on does not change what the others draw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/nn/layers/image_size.h"
#include "datasets/mix.h"
#include "datasets/rand_augment.h"

namespace trireme::datasets {

inline constexpr const char* kPixelValues = "pixel_values";  ///< the input that holds an image

struct TransformOptions {
  nn::ImageSize size = 224;  ///< of the model input, pixels
  /// Pixels of the shorter side before the central crop; unset: no such crop. At least the longer side of `size`.
  std::optional<std::int64_t> resize_shorter{};
  std::vector<double> mean{0.5, 0.5, 0.5}, std{0.5, 0.5, 0.5};  ///< by channel
  bool flip = false;                                            ///< mirrors a sample with probability 1/2
  bool crop = false;
  double crop_low = 0.08, crop_high = 1.0;  ///< fraction of the image's area that the crop covers
  std::int64_t rand_augment = 0;            ///< operations per sample
  std::int64_t rand_augment_magnitude = 9;  ///< 0 to kMostMagnitude
  double random_erasing = 0;                ///< probability
  MixOptions mix{};                         ///< with another sample of the batch, after all other steps
};

/// A part of an image, in pixels.
struct Rectangle {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
};

/// The random choices for one sample.
struct Augmentation {
  bool flip = false;
  std::optional<Rectangle> crop{};    ///< of the image as it is loaded
  std::optional<Rectangle> erased{};  ///< of the model input
  std::vector<AugmentOperation> operations{};
};

/// The crop's area is uniform in [crop_low, crop_high], its aspect ratio log-uniform in [3/4, 4/3], its position
/// uniform; after ten draws that do not fit, it is the largest central part with an aspect ratio in that range. The
/// erased part: 0.02 to 0.33 of the area, ratio 0.3 to 3.3, and none after ten draws that do not fit.
/// @param height,width of the image as it is loaded
Augmentation draw_augmentation(const TransformOptions& options, std::uint64_t seed, std::int64_t epoch,
                               std::int64_t sample, std::int64_t height, std::int64_t width);

/// uint8 [H, W, C] -> uint8 [height, width, C]; returns the image itself if it already has that size.
at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width);
/// A copy of the part, which does not keep the memory of the whole.
at::Tensor crop(const at::Tensor& image, const Rectangle& part);

/// uint8 [H, W, C] -> uint8 [size.height, size.width, C] without augmentation.
at::Tensor fit(const at::Tensor& image, const TransformOptions& options);

/// uint8 [H, W, C] mirrored left to right.
at::Tensor mirror(const at::Tensor& image);

/// The random steps after crop and resize that keep an image uint8 [H, W, C]: the flip and the operations.
at::Tensor augment(const at::Tensor& image, const Augmentation& chance);

/// (value / 255 - mean) / std of each channel. Thread-safe.
class Normalise {
 public:
  /// By channel.
  Normalise(std::vector<double> mean, std::vector<double> std) : mean_(std::move(mean)), std_(std::move(std)) {}
  /// uint8 [N, H, W, C] of any strides -> float32 [N, C, H, W]. On the CPU each value is computed in double and then
  /// rounded; elsewhere in float32, without synchronising the host after the first call.
  at::Tensor operator()(const at::Tensor& images) const;

 private:
  [[nodiscard]] at::Tensor on_cpu(const at::Tensor& images) const;
  [[nodiscard]] at::Tensor on_device(const at::Tensor& images) const;
  std::vector<double> mean_, std_;
  mutable std::mutex mutex_;
  mutable at::Tensor constants_;  ///< float32 [2, C, 1, 1]: mean and std times 255, on the device that asked last
};

/// Bool [N, 1, H, W]: the pixels within the rows [top, bottom) and the columns [left, right) of `boxes` [N, 4].
at::Tensor box_mask(const at::Tensor& boxes, std::int64_t height, std::int64_t width);

}  // namespace trireme::datasets
