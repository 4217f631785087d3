#include "core/data/dataset.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"

namespace trireme::data {
namespace {

/// Joins the tensors of all samples name by name. `join(name, tensors)` makes one tensor of them.
template <class Join>
nn::NamedTensors join_all(std::vector<Sample>& samples, nn::NamedTensors Sample::*member,
                          const std::vector<std::int64_t>& indices, const Join& join) {
  nn::NamedTensors out;
  const auto& first = samples.front().*member;
  for (std::size_t i = 1; i < samples.size(); ++i)
    if ((samples[i].*member).names() != first.names())
      throw DataError(
          fmt::format("sample {} has the tensors {}, sample {} has {}; all must have the same, in the same order",
                      indices[0], text::join(first.names()), indices[i], text::join((samples[i].*member).names())));
  for (const auto& [name, tensor] : first) {
    std::vector<at::Tensor> tensors;
    for (auto& sample : samples) tensors.push_back((sample.*member)[name]);
    out.set(name, join(name, std::move(tensors)));
  }
  return out;
}

template <class Join>
Sample collate_by(std::vector<Sample> samples, const std::vector<std::int64_t>& indices, const Join& join) {
  TRIREME_REQUIRE(!samples.empty() && samples.size() == indices.size(), "collate() got {} samples and {} indices",
                  samples.size(), indices.size());
  return {join_all(samples, &Sample::inputs, indices, join), join_all(samples, &Sample::targets, indices, join)};
}

std::vector<nn::SampleTensor> spec_of(const nn::NamedTensors& tensors) {
  std::vector<nn::SampleTensor> out;
  for (const auto& [name, tensor] : tensors) out.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return out;
}

}  // namespace

nn::NamedTensors class_label(std::int64_t label) { return {{nn::kLabels, at::scalar_tensor(label, at::kLong)}}; }

std::optional<Sample> Dataset::get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                        bool augment) {
  auto sample = get(index, epoch, augment);
  if (!sample) return sample;
  nn::NamedTensors wanted;
  for (const auto& name : inputs)
    if (const auto* tensor = sample->inputs.find(name)) wanted.set(name, *tensor);
  sample->inputs = std::move(wanted);
  return sample;
}

nn::DataSpec Dataset::spec() {
  for (std::int64_t index = 0; index < size(); ++index)
    if (const auto sample = get(index, 0, false))
      return {.inputs = spec_of(sample->inputs), .targets = spec_of(sample->targets)};
  throw DataError("the data set has no sample that can be read");
}

std::vector<std::int64_t> Dataset::order(const Shuffle& shuffle) const {
  return random::permutation(random::mix(shuffle.seed, random::hash("shuffle"), shuffle.epoch), size());
}

Sample Dataset::collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices) {
  return collate_by(std::move(samples), indices, [&](const std::string& name, std::vector<at::Tensor> tensors) {
    for (std::size_t i = 1; i < tensors.size(); ++i)
      if (tensors[i].sizes() != tensors[0].sizes())
        throw DataError(fmt::format(
            "{} has the shape [{}] in sample {} and [{}] in sample {}; a batch stacks equal shapes. Set "
            "train.micro_batch to 1, or give the data set a collate() that pads (data::collate_padded)",
            name, fmt::join(tensors[0].sizes(), ", "), indices[0], fmt::join(tensors[i].sizes(), ", "), indices[i]));
    return at::stack(tensors);
  });
}

Sample collate_padded(std::vector<Sample> samples, const std::vector<std::int64_t>& indices, const nn::DataSpec& spec,
                      const Padding& padding) {
  return collate_by(std::move(samples), indices, [&](const std::string& name, std::vector<at::Tensor> tensors) {
    auto sizes = tensors[0].sizes().vec();
    const auto* declared = spec.input(name) != nullptr ? spec.input(name) : spec.target(name);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].dim() != tensors[0].dim())
        throw DataError(fmt::format("{} has {} dimensions in sample {} and {} in sample {}; only sizes may differ",
                                    name, tensors[0].dim(), indices[0], tensors[i].dim(), indices[i]));
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      bool pads = declared != nullptr && d < declared->shape.size() && declared->shape[d] == -1;
      for (const auto& tensor : tensors) {
        pads = pads || tensor.sizes().at(d) != sizes[d];
        sizes[d] = std::max(sizes[d], tensor.sizes().at(d));
      }
      if (pads) sizes[d] = (sizes[d] + padding.multiple - 1) / padding.multiple * padding.multiple;
    }
    const auto found = padding.values.find(name);
    for (auto& tensor : tensors) {
      std::vector<std::int64_t> pads;  // from the last dimension to the first: before, after
      for (auto d = sizes.size(); d-- > 0;) pads.insert(pads.end(), {0, sizes[d] - tensor.sizes()[d]});
      if (tensor.sizes() != sizes)
        tensor = at::constant_pad_nd(tensor, pads, found == padding.values.end() ? 0 : found->second);
    }
    return at::stack(tensors);
  });
}

}  // namespace trireme::data
