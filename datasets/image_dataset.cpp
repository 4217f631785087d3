#include "datasets/image_dataset.h"

#include <algorithm>

namespace trireme::datasets {

ImageDataset::ImageDataset(std::shared_ptr<PixelSource> source, TransformOptions transform, std::uint64_t seed,
                           std::shared_ptr<CacheBudget> budget, bool skip_bad, const Log& log, bool alone)
    : source_(std::move(source)),
      transform_(std::move(transform), seed),
      cache_(source_->size(), std::move(budget)),
      bad_(skip_bad, log, alone),
      oriented_(static_cast<std::size_t>(source_->size())) {}

std::vector<nn::SampleTensor> ImageDataset::combined_targets() const { return transform_.combined_targets(); }

std::vector<std::int64_t> ImageDataset::order(const data::Shuffle& shuffle) const {
  auto of_source = source_->order(shuffle);
  return of_source ? *std::move(of_source) : Dataset::order(shuffle);
}

nn::DataSpec ImageDataset::spec() {
  const auto [height, width] = transform_.options().size;
  return {.inputs = {{kPixelValues, at::kFloat, {source_->channels(), height, width}}},
          .targets = {source_->target_spec()},
          .ignored_labels = false};
}

data::RowSpec ImageDataset::row_spec(const std::vector<std::string>& inputs, bool augment) const {
  const auto [height, width] = transform_.options().size;
  const bool pixels = std::find(inputs.begin(), inputs.end(), kPixelValues) != inputs.end();
  data::RowSpec spec{.targets = {source_->target_spec()}};
  if (pixels) spec.inputs.push_back({kPixelValues, at::kByte, {height, width, source_->channels()}});
  transform_.add_draws(spec, pixels, augment);
  return spec;
}

std::optional<data::Sample> ImageDataset::read(const std::vector<std::string>& inputs, std::int64_t index,
                                               std::int64_t epoch, bool augment) {
  const auto read_with_pixels = [&](bool with_pixels) {
    data::Sample sample{{}, {{nn::kLabels, source_->target(index)}}};
    std::optional<Augmentation> chance;
    if (with_pixels) sample.inputs.set(kPixelValues, pixels(index, augment, epoch, &chance));
    if (augment) transform_.add_draws(sample, chance, epoch, index);
    return sample;
  };
  if (std::find(inputs.begin(), inputs.end(), kPixelValues) == inputs.end()) return read_with_pixels(false);
  return bad_.guard(index, [&] { return read_with_pixels(true); });
}

std::vector<std::int64_t> ImageDataset::oriented() const {
  const std::lock_guard lock(oriented_mutex_);
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < oriented_.size(); ++i)
    if (oriented_[i]) out.push_back(static_cast<std::int64_t>(i));
  return out;
}

at::Tensor ImageDataset::cached_pixels(std::int64_t index) {
  if (auto image = cache_.find(index); image.defined()) return image;
  auto [image, has_orientation] = source_->load(index);
  if (has_orientation) {
    const std::lock_guard lock(oriented_mutex_);
    oriented_[static_cast<std::size_t>(index)] = true;
  }
  if (!transform_.options().crop) image = fit(image, transform_.options());
  cache_.add(index, image);
  return image;
}

at::Tensor ImageDataset::pixels(std::int64_t index, bool augment, std::int64_t epoch,
                                std::optional<Augmentation>* chance) {
  const auto& options = transform_.options();
  auto image = cached_pixels(index);
  if (augment) *chance = transform_.draw(epoch, index, image.size(0), image.size(1));
  if (*chance && (*chance)->crop)
    image = resize(crop(image, *(*chance)->crop), options.size.height, options.size.width);
  else if (options.crop)
    image = fit(image, options);
  return *chance ? datasets::augment(image, **chance) : image;
}

}  // namespace trireme::datasets
