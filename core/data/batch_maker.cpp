#include "core/data/batch_maker.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::data {
namespace {

/// Makes a tensor of zero samples. Variable sizes become 1, because a model may reject a size of 0.
at::Tensor empty_of(const nn::SampleTensor& tensor) {
  std::vector<std::int64_t> shape{0};
  for (const auto size : tensor.shape) shape.push_back(size == -1 ? 1 : size);
  return at::empty(shape, tensor.dtype);
}

bool same_tensors(const nn::NamedTensors& tensors, const std::vector<nn::SampleTensor>& declared) {
  return std::equal(tensors.begin(), tensors.end(), declared.begin(), declared.end(),
                    [](const nn::NamedTensors::Item& item, const nn::SampleTensor& as) {
                      const auto& [name, tensor] = item;
                      return name == as.name && tensor.dim() == static_cast<std::int64_t>(as.shape.size()) + 1 &&
                             tensor.is_floating_point() == at::isFloatingType(as.dtype);
                    });
}

void check_declared(const nn::NamedTensors& tensors, const std::vector<nn::SampleTensor>& declared) {
  if (same_tensors(tensors, declared)) return;
  std::vector<std::string> got, wanted;
  for (const auto& [name, tensor] : tensors)
    got.push_back(nn::SampleTensor{name, tensor.scalar_type(), tensor.sizes().slice(1).vec()}.text());
  for (const auto& each : declared) wanted.push_back(each.text());
  throw DataError(
      fmt::format("a batch has the tensors {} for each sample, but the data set's spec() says {}; override spec() so "
                  "that it lists what get() and collate() return, in this order",
                  got.empty() ? "none" : text::join(got), wanted.empty() ? "none" : text::join(wanted)));
}

}  // namespace

BatchMaker::BatchMaker(std::shared_ptr<Dataset> dataset, Options options)
    : dataset_(std::move(dataset)), options_(std::move(options)), spec_(dataset_->spec()) {
  if (options_.combined)
    for (auto& target : dataset_->combined_targets()) spec_.targets.push_back(std::move(target));
  for (const auto& input : spec_.inputs)
    if (reads(input)) {
      inputs_.push_back(input);
      names_.push_back(input.name);
    }
}

bool BatchMaker::reads(const nn::SampleTensor& input) const {
  const auto& needed = options_.needed;
  return !needed || input.varies() || std::find(needed->begin(), needed->end(), input.name) != needed->end();
}

std::optional<Sample> BatchMaker::read(std::int64_t index, std::int64_t epoch, bool augment) {
  auto sample =
      options_.needed ? dataset_->get_with(names_, index, epoch, augment) : dataset_->get(index, epoch, augment);
  if (sample && options_.strict) check_sample(*sample, index);
  return sample;
}

void BatchMaker::check_sample(const Sample& sample, std::int64_t index) const {
  for (const auto& [name, tensor] : sample.inputs) {
    const auto* declared = spec_.input(name);
    bool same = declared != nullptr && tensor.dim() == static_cast<std::int64_t>(declared->shape.size());
    for (std::size_t d = 0; same && d < declared->shape.size(); ++d)
      same = declared->shape[d] == -1 || declared->shape[d] == tensor.sizes()[d];
    if (same) continue;
    throw DataError(
        fmt::format("{} of sample {} is [{}], but the data set's spec() says {}. In a pipeline, ranks that do not read "
                    "the inputs rely on it; a size that varies must be -1 there",
                    name, index, fmt::join(tensor.sizes(), ", "), declared == nullptr ? "nothing" : declared->text()));
  }
}

Batch BatchMaker::make(std::vector<Sample> samples, const std::vector<std::int64_t>& ids) {
  Batch batch;
  if (samples.empty()) {
    for (const auto& input : inputs_) batch.inputs.set(input.name, empty_of(input));
    for (const auto& target : spec_.targets) batch.targets.set(target.name, empty_of(target));
  } else {
    auto made = dataset_->collate(std::move(samples), ids);
    check_declared(made.inputs, inputs_);
    check_declared(made.targets, spec_.targets);
    batch.inputs = std::move(made.inputs);
    batch.targets = std::move(made.targets);
  }
  for (auto* tensors : {&batch.inputs, &batch.targets})
    for (auto& [name, tensor] : *tensors) {
      if (tensor.is_floating_point()) tensor = tensor.to(options_.dtype);
      if (options_.pinned) tensor = tensor.pin_memory();
    }
  const auto size = static_cast<std::int64_t>(ids.size());
  if (options_.needed) add_remote_inputs(batch, size);
  batch.sample_ids = at::empty({size}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.sample_ids.mutable_data_ptr<std::int64_t>());
  return batch;
}

/// Puts the inputs that this rank does not read on the meta device, in the data set's order.
void BatchMaker::add_remote_inputs(Batch& batch, std::int64_t size) const {
  nn::NamedTensors all;
  for (const auto& input : spec_.inputs) {
    if (const auto* own = batch.inputs.find(input.name)) {
      all.set(input.name, *own);
      continue;
    }
    auto shape = input.shape;
    shape.insert(shape.begin(), size);
    const auto dtype = at::isFloatingType(input.dtype) ? options_.dtype : input.dtype;
    all.set(input.name, at::empty(shape, at::TensorOptions(dtype).device(at::kMeta)));
  }
  batch.inputs = std::move(all);
}

}  // namespace trireme::data
