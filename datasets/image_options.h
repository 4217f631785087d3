// The keys that data sets with images share, and how they become a transform.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "datasets/datasets.h"
#include "datasets/transform.h"

namespace trireme::datasets {

/// `size_text`: what an unset image_size means. `usual`: the normalisation if neither the user nor weights have one.
template <class T>
Fields<T>& add_image_fields(Fields<T>& table, const std::string& size_text,
                            const Normalisation& usual = kUsualNormalisation) {
  using O = ImageOptions;
  const auto channels = usual.mean.size();
  const std::string of = channels == 3 ? "the red, green and blue channels" : "the pixels";
  const auto otherwise = [](const std::vector<double>& values) {
    const bool same = std::all_of(values.begin(), values.end(), [&](double value) { return value == values.front(); });
    return same ? fmt::format("{}", values.front()) : fmt::format("[{}]", fmt::join(values, ", "));
  };
  return table
      .add("image_size", &O::image_size, "Images are resized to this many pixels per side. Unset: " + size_text,
           {.min = 1, .max = 65536})
      .add("mean", &O::mean,
           fmt::format("Mean of {}, subtracted from pixel values between 0 and 1. Unset: the values in the "
                       "preprocessor_config.json of loaded weights, else {}.",
                       of, otherwise(usual.mean)),
           {.length = channels})
      .add("std", &O::std,
           fmt::format("Standard deviation of {}, by which pixel values are divided. Unset: as for mean, else {}.", of,
                       otherwise(usual.std)),
           {.above = 0, .length = channels})
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
