#include "datasets/batch_transform.h"

#include <ATen/ops/tensor.h>

#include <utility>

namespace trireme::datasets {
namespace {

/// Int64 [4] of an input: the erased rows [top, bottom) and columns [left, right).
constexpr const char* kErased = "pixel_values.erased";

at::Tensor box_of(const std::optional<Rectangle>& part) {
  const auto [top, left, height, width] = part.value_or(Rectangle{});
  return at::tensor({top, top + height, left, left + width}, at::kLong);
}

nn::NamedTensors without(const nn::NamedTensors& tensors, std::string_view name) {
  nn::NamedTensors out;
  for (const auto& [each, tensor] : tensors)
    if (each != name) out.set(each, tensor);
  return out;
}

}  // namespace

BatchTransform::BatchTransform(TransformOptions options, std::uint64_t seed)
    : options_(std::move(options)), seed_(seed), normalise_(options_.mean, options_.std) {}

std::vector<nn::SampleTensor> BatchTransform::combined_targets() const {
  return options_.mix.any() ? mixed_targets() : std::vector<nn::SampleTensor>();
}

void BatchTransform::add_draws(data::RowSpec& spec, bool pixels, bool augment) const {
  if (!augment) return;
  if (pixels && options_.random_erasing > 0) spec.inputs.push_back({kErased, at::kLong, {4}});
  if (options_.mix.any()) spec.targets.push_back({kMix, at::kDouble, {6}});
}

void BatchTransform::add_draws(data::Sample& sample, const std::optional<Augmentation>& chance, std::int64_t epoch,
                               std::int64_t index) const {
  if (chance && options_.random_erasing > 0) sample.inputs.set(kErased, box_of(chance->erased));
  if (options_.mix.any())
    sample.targets.set(
        kMix, as_tensor(draw_mix(options_.mix, seed_, epoch, index, options_.size.height, options_.size.width)));
}

data::Sample BatchTransform::operator()(data::Sample batch, bool combine) const {
  if (const auto* pixels = batch.inputs.find(kPixelValues)) {
    auto values = pixels->scalar_type() == at::kByte ? normalise_(*pixels) : *pixels;
    if (const auto* erased = batch.inputs.find(kErased)) {
      values = values.masked_fill(box_mask(*erased, values.size(2), values.size(3)), 0);
      batch.inputs = without(batch.inputs, kErased);
    }
    batch.inputs.set(kPixelValues, std::move(values));
  }
  if (const auto* found = batch.targets.find(kMix)) {
    const auto draws = *found;
    batch.targets = without(batch.targets, kMix);
    if (combine) return mix(batch, draws);
  }
  return batch;
}

}  // namespace trireme::datasets
