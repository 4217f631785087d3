#include "datasets/image_dataset.h"

#include <algorithm>
#include <utility>

namespace trireme::datasets {

ImageDataset::ImageDataset(std::shared_ptr<PixelSource> source, TransformOptions transform, std::uint64_t seed,
                           std::shared_ptr<CacheBudget> budget, bool skip_bad, const Log& log)
    : source_(std::move(source)),
      transform_(transform),
      seed_(seed),
      cache_(source_->size(), std::move(budget)),
      bad_(skip_bad, log) {}

std::optional<data::Sample> ImageDataset::get(std::int64_t index, std::int64_t epoch, bool augment) {
  return bad_.guard(index, [&] { return read(index, epoch, augment); });
}

std::optional<data::Sample> ImageDataset::get_with(const std::vector<std::string>& inputs, std::int64_t index,
                                                   std::int64_t epoch, bool augment) {
  if (std::find(inputs.begin(), inputs.end(), kPixelValues) != inputs.end()) return get(index, epoch, augment);
  return data::Sample{{}, data::class_label(source_->label(index))};
}

nn::DataSpec ImageDataset::spec() {
  return {.inputs = {{kPixelValues, at::kFloat, {source_->channels(), transform_.size, transform_.size}}},
          .targets = {{nn::kLabels, at::kLong, {}}},
          .ignored_labels = false};
}

at::Tensor ImageDataset::cached_pixels(std::int64_t index) {
  if (auto image = cache_.find(index); image.defined()) return image;
  auto image = source_->load(index);
  if (!transform_.crop) image = resize(image, transform_.size);
  cache_.add(index, image);
  return image;
}

data::Sample ImageDataset::read(std::int64_t index, std::int64_t epoch, bool augment) {
  auto image = cached_pixels(index);
  Augmentation chance;
  if (augment) chance = draw_augmentation(transform_, seed_, epoch, index, image.size(0), image.size(1));
  if (chance.crop) image = crop(image, chance);
  return {{{kPixelValues, normalise(resize(image, transform_.size), transform_, chance.flip)}},
          data::class_label(source_->label(index))};
}

}  // namespace trireme::datasets
