// The orientation in EXIF metadata (CIPA DC-008, tag 0x0112): which way the camera was held. 1 is upright; 2 to 8 say
// how the stored image must be mirrored or turned to be upright.
#pragma once

#include <ATen/core/Tensor.h>

#include "datasets/codecs/image_reader.h"

namespace trireme::datasets {

inline constexpr int kUpright = 1, kLastOrientation = 8;

/// 1 to 8. @param exif the metadata, with or without "Exif\0\0" in front; without an orientation, or damaged: 1
int exif_orientation(Bytes exif);

/// The upright image, contiguous. @param image [H, W, C]; H and W change places from 5 on
at::Tensor turn_upright(const at::Tensor& image, int orientation);

}  // namespace trireme::datasets
