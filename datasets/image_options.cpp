#include "datasets/image_options.h"

#include <utility>

#include "core/base/error.h"
#include "datasets/held_out.h"
#include "datasets/image_dataset.h"

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

Decoding decoding_of(const DecodedImageOptions& options) {
  Decoding out{.most_pixels = options.max_pixels, .turn = options.exif == "apply"};
  if (options.background) {
    auto& colour = out.background.emplace();
    std::copy(options.background->begin(), options.background->end(), colour.begin());
  }
  return out;
}

void hold_out_images(PixelSources& sources, const HeldOutOptions& options, const std::string& path,
                     const std::vector<std::string>& classes, const Log& log, std::string& digest) {
  const auto all = sources.at(data::Split::train);
  auto held = hold_out_as(
      options, all->size(), [&](std::int64_t i) { return all->label(i); },
      {path, "images", all->target_spec(), classes, log}, digest);
  sources[data::Split::train] = part_source(all, std::move(held.train));
  sources[data::Split::validation] = part_source(all, std::move(held.validation));
}

void check_mixing(const ImageOptions& options, const nn::SampleTensor& labels, const std::string& source,
                  const data::OpenContext& context) {
  for (const auto& [key, alpha] : {std::pair{"mixup", options.mixup}, {"cutmix", options.cutmix}})
    if (alpha > 0 && (labels.dtype != at::kLong || !labels.shape.empty()))
      config::fail(
          context.section, key,
          fmt::format("has no effect: {} of {} are not one class for each image; remove it", labels.name, source));
}

data::Datasets image_splits(const PixelSources& sources, std::vector<std::string> classes, const ImageOptions& options,
                            std::int64_t default_size, std::optional<double> cache_mb,
                            const data::OpenContext& context) {
  constexpr double kCacheMb = 512, kUnlimited = 1e9;
  data::Datasets out;
  const double mebibytes = cache_mb.value_or(context.shard_data && context.launch.size > 1 ? kUnlimited : kCacheMb);
  const auto budget = std::make_shared<CacheBudget>(static_cast<std::int64_t>(mebibytes * 1024 * 1024));
  for (const auto& [split, source] : sources)
    out.of(split) = std::make_shared<ImageDataset>(source, transform_of(options, default_size, split), context.seed,
                                                   budget, context.skip_bad_samples, context.log);
  out.info.spec = out.train->spec();
  out.info.spec.classes = static_cast<std::int64_t>(classes.size());
  out.info.spec.class_names = std::move(classes);
  const auto size = options.image_size.value_or(default_size);
  out.info.about =
      size.is_square() ? fmt::format("{} px", size.height) : fmt::format("{} x {} px", size.height, size.width);
  out.info.files["preprocessor_config.json"] = preprocessor_config(options, size);
  return out;
}

}  // namespace trireme::datasets
