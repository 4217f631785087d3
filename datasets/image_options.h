// What data sets with images share: their keys, how these become a transform, and preprocessor_config.json, the file
// beside weights in Hugging Face's layout that says how images are prepared. It is read where weights are loaded and
// written where weights are exported.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "datasets/datasets.h"
#include "datasets/image.h"
#include "datasets/pixel_source.h"
#include "datasets/transform.h"

namespace trireme::datasets {

template <class T>
Fields<T>& require_path(Fields<T>& table) {
  return table.rule([name = table.choice](const T& o, const CheckedSection& section) {
    if (o.path.empty())
      section.fail("path", fmt::format("is required with name = \"{}\": the folder of the data set", name));
  });
}

/// For a kind that decodes images.
template <class T>
Fields<T>& add_decoding_fields(Fields<T>& table) {
  using O = DecodedImageOptions;
  return table
      .add("exif", &O::exif,
           "The orientation in the EXIF metadata of photos: \"ignore\", as torchvision and Pillow do unless they are "
           "told, or \"apply\", which turns the image upright.",
           {.choices = {"ignore", "apply"}})
      .add("background", &O::background,
           "The colour behind transparent pixels, as [red, green, blue] from 0 to 255, such as [255, 255, 255]. Unset: "
           "transparency is ignored, as in Pillow's convert(\"RGB\").",
           {.min = 0, .max = 255, .length = 3})
      .add("max_pixels", &O::max_pixels,
           "Images with more pixels are refused: a small file can say that it has any number of them. The default is "
           "Pillow's limit.",
           {.min = 1, .max = 1e10})
      .add("cache_mb", &O::cache_mb,
           "Memory per rank for decoded images in MiB; 0 decodes them again in each epoch. Unset: 512, or with "
           "shard_data = true on several ranks no limit.",
           {.min = 0, .max = 1e9});
}
Decoding decoding_of(const DecodedImageOptions& options);

/// `default_size`: pixels per side if image_size is unset; unset for a kind that never resizes its images. `usual`: the
/// normalisation if neither the user nor weights have one.
template <class T>
Fields<T>& add_image_fields(Fields<T>& table, std::optional<std::int64_t> default_size,
                            const Normalisation& usual = kUsualNormalisation) {
  using O = ImageOptions;
  const auto channels = usual.mean.size();
  const std::string of = channels == 3 ? "the red, green and blue channels" : "the pixels";
  const auto otherwise = [](const std::vector<double>& values) {
    const bool same = std::all_of(values.begin(), values.end(), [&](double value) { return value == values.front(); });
    return same ? fmt::format("{}", values.front()) : fmt::format("[{}]", fmt::join(values, ", "));
  };
  const auto size_text =
      default_size ? fmt::format("{}.", *default_size) : std::string("the size in the file, which is never changed.");
  return table
      .add("image_size", &O::image_size,
           "Images are resized to this many pixels: 224 for a square of 224 x 224, or [height, width] such as [192, "
           "256]. Unset: " +
               size_text,
           {.min = 1, .max = 65536, .length = 2, .one_for_all = true})
      .add("resize_shorter", &O::resize_shorter,
           "Without a random crop, images are resized so that their shorter side has this many pixels, and the central "
           "part of image_size is cut out; at least the longer side of image_size. Unset: the whole image is resized "
           "to image_size.",
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
      .add("rand_augment", &O::rand_augment,
           "RandAugment: number of random operations on each training image, after crop, resize and flip. 0: none.",
           {.min = 0, .max = 100})
      .add("rand_augment_magnitude", &O::rand_augment_magnitude,
           "Strength of RandAugment's operations; it needs rand_augment.", {.min = 0, .max = kMostMagnitude})
      .add("random_erasing", &O::random_erasing,
           "Probability that a random rectangle of a training image, 2 to 33 % of its area, is set to 0 after the "
           "normalisation.",
           {.min = 0, .max = 1})
      .add("mixup", &O::mixup,
           "Mix each training image, and its label, with the next one of its batch; the share is drawn from a beta "
           "distribution with this alpha for each image, such as 0.2 or 0.8. 0: no mixing.",
           {.min = 0, .max = 1000})
      .add("cutmix", &O::cutmix,
           "Replace a box of each training image by that of the next one of its batch, and mix their labels by area; "
           "alpha as for mixup, such as 1. With both, each image takes one of them with a probability of one half. 0: "
           "none.",
           {.min = 0, .max = 1000})
      // The rules between the keys of images.
      .rule([](const T& o, const CheckedSection& section) {
        if (o.crop_scale[0] > o.crop_scale[1])
          section.fail("crop_scale", "must be the smaller fraction first, then the larger");
      })
      .rule([default_size](const T& o, const CheckedSection& section) {
        if (!o.resize_shorter || !(o.image_size || default_size)) return;
        const auto size = o.image_size ? *o.image_size : nn::ImageSize(*default_size);
        if (*o.resize_shorter < size.longer())  // an image may be upright or wide
          section.fail("resize_shorter",
                       fmt::format("is less than {}image_size = {}, the size that is cut out of the resized image; "
                                   "raise it, or lower image_size",
                                   size.is_square() ? "" : "the longer side of ", size.text()));
      })
      .rule([](const T& o, const CheckedSection& section) {
        if (o.rand_augment == 0 && o.rand_augment_magnitude != ImageOptions{}.rand_augment_magnitude)
          section.fail(
              "rand_augment_magnitude",
              "has no effect with rand_augment = 0; remove it, or set rand_augment to the number of operations");
      });
}

/// The transform of a split; only the train split is augmented, so the others can be cached fully preprocessed.
/// @pre mean and std are set
TransformOptions transform_of(const ImageOptions& options, std::int64_t default_size, data::Split split);

using PixelSources = std::map<data::Split, std::shared_ptr<PixelSource>>;

/// hold_out_as() of the images of the training split, which are then two splits. `path`: for messages.
void hold_out_images(PixelSources& sources, const HeldOutOptions& options, const std::string& path,
                     const std::vector<std::string>& classes, const Log& log, std::string& digest);

/// mixup and cutmix need one class for each image. @throws ConfigError
void check_mixing(const ImageOptions& options, const nn::SampleTensor& labels, const std::string& source,
                  const data::OpenContext& context);

/// The splits of a data set of images, made of their sources: each with the transform of its split.
/// `default_size`: pixels per side when options.image_size is unset; `cache_mb`: memory for decoded images; unset: by
/// default 512 MiB, and no limit with context.shard_data.
/// @pre mean and std are set
data::Datasets image_splits(const PixelSources& sources, std::vector<std::string> classes, const ImageOptions& options,
                            std::int64_t default_size, std::optional<double> cache_mb,
                            const data::OpenContext& context);

/// Sets mean and std where the user left them open: to those of the weights that the model starts from, which it logs,
/// else to the `usual` values. @throws ConfigError when the user set other values than the weights have; it names both
/// places.
/// @throws CheckpointError for an invalid file
void fill_normalisation(ImageOptions& options, const data::OpenContext& context,
                        const Normalisation& usual = kUsualNormalisation);

/// The file's text for images of this size: for a ViTImageProcessor, or with options.resize_shorter for a
/// BitImageProcessor, which resizes the shorter side and crops the centre. @pre mean and std are set
std::string preprocessor_config(const ImageOptions& options, const nn::ImageSize& size);

/// Images that a user names one by one or by their folders, for a prediction: they belong to no split and have no
/// label. `paths`: files, whatever their names, in this order; a folder stands for the images below it, in byte order
/// of their paths, without hidden ones (folder_entries.h). A file that cannot be read is an unreadable sample. They are
/// prepared as the images of a validation split are; `usual` and `default_size` are those of the data set.
/// @throws DataError for a folder that cannot be read or has no image; ConfigError, CheckpointError as
/// fill_normalisation()
data::FileSamples open_image_files(ImageOptions& options, const Normalisation& usual, std::int64_t default_size,
                                   const data::OpenContext& context, const std::vector<std::string>& paths,
                                   const Decoding& decoding = {});

}  // namespace trireme::datasets
