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

std::vector<nn::SampleTensor> ImageDataset::combined_targets() const {
  return transform_.mix.any() ? mixed_targets() : std::vector<nn::SampleTensor>();
}

data::Sample ImageDataset::combine(data::Sample sample, const data::Sample& other, std::int64_t index,
                                   std::int64_t epoch) {
  mix(sample, other, draw_mix(transform_.mix, seed_, epoch, index, transform_.size.height, transform_.size.width));
  return sample;
}

std::vector<std::int64_t> ImageDataset::order(std::uint64_t seed, std::int64_t epoch) const {
  auto of_source = source_->order(seed, epoch);
  return of_source ? *std::move(of_source) : Dataset::order(seed, epoch);
}

nn::DataSpec ImageDataset::spec() {
  return {.inputs = {{kPixelValues, at::kFloat, {source_->channels(), transform_.size.height, transform_.size.width}}},
          .targets = {{nn::kLabels, at::kLong, {}}},
          .ignored_labels = false};
}

at::Tensor ImageDataset::cached_pixels(std::int64_t index) {
  if (auto image = cache_.find(index); image.defined()) return image;
  auto image = source_->load(index);
  if (!transform_.crop) image = fit(image, transform_);
  cache_.add(index, image);
  return image;
}

data::Sample ImageDataset::read(std::int64_t index, std::int64_t epoch, bool augment) {
  auto image = cached_pixels(index);
  Augmentation chance;
  if (augment) chance = draw_augmentation(transform_, seed_, epoch, index, image.size(0), image.size(1));
  if (chance.crop)
    image = resize(crop(image, *chance.crop), transform_.size.height, transform_.size.width);
  else if (transform_.crop)
    image = fit(image, transform_);
  return {{{kPixelValues, model_input(image, transform_, chance)}}, data::class_label(source_->label(index))};
}

}  // namespace trireme::datasets
