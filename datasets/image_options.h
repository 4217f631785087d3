// The keys that data sets with images share, and how they become a transform.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/fields.h"
#include "datasets/datasets.h"
#include "datasets/transform.h"

namespace trireme::datasets {

/// `size_text`: what an unset image_size means.
template <class T>
Fields<T>& add_image_fields(Fields<T>& table, const std::string& size_text) {
  using O = ImageOptions;
  return table
      .add("image_size", &O::image_size, "Images are resized to this many pixels per side. Unset: " + size_text,
           {.min = 1, .max = 65536})
      .add("mean", &O::mean,
           "Mean of the red, green and blue channels, subtracted from pixel values between 0 and 1. Unset: the values "
           "in the preprocessor_config.json of loaded weights, else 0.5.",
           {.length = 3})
      .add("std", &O::std,
           "Standard deviation of the red, green and blue channels, by which pixel values are divided. Unset: as for "
           "mean.",
           {.above = 0, .length = 3})
      .add("flip", &O::flip, "Mirror each training image left to right with a probability of one half.")
      .add("random_resized_crop", &O::random_resized_crop,
           "Cut a random part of each training image and resize that, instead of resizing the whole image.")
      .add("crop_scale", &O::crop_scale,
           "The smallest and the largest fraction of the image's area that a random crop covers.",
           {.max = 1, .above = 0, .length = 2, .only = OnlyWith{"random_resized_crop", {"true"}}})
      .rule([](const T& o, const CheckedSection& section) {
        if (o.crop_scale[0] > o.crop_scale[1])
          section.fail("crop_scale", "must be the smaller fraction first, then the larger");
      });
}

/// The transform of a split; only the train split is augmented, so the others can be cached fully preprocessed.
/// @pre mean and std are set
TransformOptions transform_of(const ImageOptions& options, std::int64_t default_size, data::Split split);

}  // namespace trireme::datasets
