#include "core/data/drawn_dataset.h"

#include <algorithm>

#include "core/data/sampler.h"

namespace trireme::data {

bool have_like_rows(const std::vector<std::shared_ptr<Dataset>>& parts) {
  std::vector<std::string> inputs;
  for (const auto& input : parts.front()->spec().inputs) inputs.push_back(input.name);
  const auto like_first = [&](bool augment) {
    const auto spec = parts.front()->rows()->row_spec(inputs, augment);
    return std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
      const auto own = part->rows()->row_spec(inputs, augment);
      return own.inputs == spec.inputs && own.targets == spec.targets;
    });
  };
  return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part->rows() != nullptr; }) &&
         like_first(false) && like_first(true);
}

DrawnDataset::DrawnDataset(std::vector<std::shared_ptr<Dataset>> parts, std::int64_t size, DrawsOf draws)
    : parts_(std::move(parts)), size_(size), draws_(std::move(draws)), in_rows_(have_like_rows(parts_)) {}

Draw DrawnDataset::at(std::int64_t index, std::int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  auto& [of, draws] = recent_[static_cast<std::size_t>(epoch % 2)];
  if (of != epoch) {
    draws = draws_(epoch);
    of = epoch;
  }
  return draws.at(static_cast<std::size_t>(index));
}

std::vector<nn::SampleTensor> DrawnDataset::combined_targets() const { return parts_.front()->combined_targets(); }

std::optional<Sample> DrawnDataset::get(std::int64_t index, std::int64_t epoch, bool augment) {
  const auto draw = at(index, epoch);
  return parts_[draw.part]->get(draw.sample, draw.turn, augment);
}

std::optional<Sample> DrawnDataset::get_with(const std::vector<std::string>& inputs, std::int64_t index,
                                             std::int64_t epoch, bool augment) {
  const auto draw = at(index, epoch);
  return parts_[draw.part]->get_with(inputs, draw.sample, draw.turn, augment);
}

Sample DrawnDataset::collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices) {
  return parts_.front()->collate(std::move(samples), indices);
}

std::vector<std::int64_t> DrawnDataset::order(const Shuffle& /*shuffle*/) const {
  return epoch_order(*this, std::nullopt);
}

std::vector<std::int64_t> DrawnDataset::of_all(std::vector<std::int64_t> (Dataset::*list)() const) const {
  std::vector<std::int64_t> out;
  std::int64_t before = 0;
  for (const auto& part : parts_) {
    for (const auto sample : (part.get()->*list)()) out.push_back(before + sample);
    before += part->size();
  }
  return out;
}

RowSpec DrawnDataset::row_spec(const std::vector<std::string>& inputs, bool augment) const {
  return parts_.front()->rows()->row_spec(inputs, augment);
}

std::optional<Sample> DrawnDataset::read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                         bool augment) {
  const auto draw = at(index, epoch);
  return parts_[draw.part]->rows()->read(inputs, draw.sample, draw.turn, augment);
}

Sample DrawnDataset::transform_batch(Sample batch, bool combine) const {
  return parts_.front()->rows()->transform_batch(std::move(batch), combine);
}

}  // namespace trireme::data
