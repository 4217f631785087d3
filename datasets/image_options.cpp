#include "datasets/image_options.h"

#include "core/base/error.h"

namespace trireme::datasets {

TransformOptions transform_of(const ImageOptions& options, std::int64_t default_size, data::Split split) {
  TRIREME_CHECK(options.mean && options.std, "the normalisation of the images is not known yet");
  TransformOptions out;
  out.size = options.image_size.value_or(default_size);
  out.resize_shorter = options.resize_shorter;
  out.mean = *options.mean;
  out.std = *options.std;
  const bool augments = split == data::Split::train;
  out.flip = augments && options.flip;
  out.crop = augments && options.random_resized_crop;
  out.crop_low = options.crop_scale[0];
  out.crop_high = options.crop_scale[1];
  out.rand_augment = augments ? options.rand_augment : 0;
  out.rand_augment_magnitude = options.rand_augment_magnitude;
  out.random_erasing = augments ? options.random_erasing : 0;
  if (augments) out.mix = {options.mixup, options.cutmix};
  return out;
}

}  // namespace trireme::datasets
