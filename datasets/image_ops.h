// Operations on the pixels of an image, those of RandAugment among them: affine maps, tables of grey levels, colour and
// sharpness. Each takes a contiguous uint8 [H, W, C] with C = 1 or 3 and returns a new image of the same shape, or the
// image itself if nothing changes.
//
// The definitions are those of torchvision's kernels for uint8 tensors (torchvision.transforms.v2.functional): results
// are truncated to integers, not rounded, and colours become grey by 0.2989 R + 0.587 G + 0.114 B.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::datasets {

/// Where a pixel of the output comes from: x = xx X + xy Y + x0 and y = yx X + yy Y + y0. Positions are in pixels from
/// the centre of the image, to the right and down.
struct AffineMap {
  double xx = 1, xy = 0, x0 = 0;
  double yx = 0, yy = 1, y0 = 0;
};
/// Takes the nearest pixel; outside of the image it is 0.
at::Tensor warp(const at::Tensor& image, const AffineMap& source);

/// value * factor.
at::Tensor adjust_brightness(const at::Tensor& image, double factor);
/// Mixes `factor` of the image with 1 - factor of its grey version. A grey image does not change.
at::Tensor adjust_saturation(const at::Tensor& image, double factor);
/// Mixes `factor` of the image with 1 - factor of its mean grey level.
at::Tensor adjust_contrast(const at::Tensor& image, double factor);
/// Mixes `factor` of the image with 1 - factor of a blurred version; the outermost pixels stay.
at::Tensor adjust_sharpness(const at::Tensor& image, double factor);
/// Keeps the highest `bits` of each value.
at::Tensor posterize(const at::Tensor& image, int bits);
/// Inverts the values from `threshold` on.
at::Tensor solarize(const at::Tensor& image, double threshold);
/// Stretches the values of each channel to 0..255.
at::Tensor autocontrast(const at::Tensor& image);
/// Makes the histogram of each channel flat.
at::Tensor equalize(const at::Tensor& image);

}  // namespace trireme::datasets
