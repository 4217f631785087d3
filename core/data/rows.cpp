#include "core/data/rows.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/base/error.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kAlignment = 16;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Part [begin, begin + bytes) of each row as elements of this type.
at::Tensor view_of(const at::Tensor& rows, std::int64_t begin, std::int64_t bytes, at::ScalarType dtype) {
  return rows.narrow(1, begin, bytes).view(dtype);
}

}  // namespace

RowSpec row_spec_of(const nn::DataSpec& spec, const std::vector<std::string>& inputs) {
  RowSpec out{.targets = spec.targets};
  std::copy_if(spec.inputs.begin(), spec.inputs.end(), std::back_inserter(out.inputs),
               [&](const auto& input) { return std::find(inputs.begin(), inputs.end(), input.name) != inputs.end(); });
  return out;
}

std::optional<Sample> RowDataset::get(std::int64_t index, std::int64_t epoch, bool augment) {
  std::vector<std::string> all;
  for (const auto& input : spec().inputs) all.push_back(input.name);
  return get_with(all, index, epoch, augment);
}

std::optional<Sample> RowDataset::get_with(const std::vector<std::string>& inputs, std::int64_t index,
                                           std::int64_t epoch, bool augment) {
  const auto sample = read(inputs, index, epoch, augment);
  if (!sample) return std::nullopt;
  const auto each = [](const nn::NamedTensors& tensors, const auto& change) {
    nn::NamedTensors out;
    for (const auto& [name, tensor] : tensors) out.set(name, change(tensor));
    return out;
  };
  const auto batched = [](const at::Tensor& tensor) { return tensor.unsqueeze(0); };
  const auto single = [](const at::Tensor& tensor) { return tensor.squeeze(0); };
  const auto batch =
      transform_batch({each(sample->inputs, batched), each(sample->targets, batched)}, /*combine=*/false);
  return Sample{each(batch.inputs, single), each(batch.targets, single)};
}

RowLayout::RowLayout(const RowSpec& spec, const std::vector<std::string>& first)
    : bytes_(aligned(sizeof(std::int64_t))) {
  for (const auto& target : spec.targets) targets_.push_back(append(target));
  const auto is_first = [&](const nn::SampleTensor& input) {
    return std::find(first.begin(), first.end(), input.name) != first.end();
  };
  inputs_.resize(spec.inputs.size());
  for (const bool wanted : {true, false}) {
    for (std::size_t i = 0; i < spec.inputs.size(); ++i)
      if (is_first(spec.inputs[i]) == wanted) inputs_[i] = append(spec.inputs[i]);
    if (wanted) first_ = bytes_;
  }
}

RowLayout::Field RowLayout::append(const nn::SampleTensor& tensor) {
  TRIREME_CHECK(!tensor.varies(), "{} of a row has a size that varies", tensor.name);
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype)) * c10::multiply_integers(tensor.shape);
  const Field field{tensor, bytes_, bytes};
  bytes_ += aligned(bytes);
  return field;
}

void RowLayout::write(const Field& field, const at::Tensor& value, std::int64_t id, unsigned char* row) {
  if (value.scalar_type() != field.tensor.dtype || value.sizes() != at::IntArrayRef(field.tensor.shape))
    throw DataError(fmt::format("{} of sample {} is {} [{}], but the data set's row_spec() says {}", field.tensor.name,
                                id, c10::toString(value.scalar_type()), fmt::join(value.sizes(), ", "),
                                field.tensor.text()));
  const auto dense = value.contiguous();
  std::memcpy(row + field.begin, dense.const_data_ptr(), static_cast<std::size_t>(field.bytes));
}

void RowLayout::write(const std::optional<Sample>& sample, std::int64_t id, const at::Tensor& rows,
                      std::int64_t at) const {
  auto* row = rows.mutable_data_ptr<unsigned char>() + at * bytes_;
  std::memcpy(row, &id, sizeof(id));
  if (!sample) return;
  for (const auto& target : targets_) write(target, sample->targets[target.tensor.name], id, row);
  for (const auto& input : inputs_) write(input, sample->inputs[input.tensor.name], id, row);
}

Sample RowLayout::tensors(const at::Tensor& rows) const {
  const auto value = [&](const Field& field) {
    auto shape = field.tensor.shape;
    shape.insert(shape.begin(), rows.size(0));
    return view_of(rows, field.begin, field.bytes, field.tensor.dtype).view(shape);
  };
  Sample out;
  for (const auto& input : inputs_)
    if (input.begin + input.bytes <= rows.size(1)) out.inputs.set(input.tensor.name, value(input));
  for (const auto& target : targets_) out.targets.set(target.tensor.name, value(target));
  return out;
}

at::Tensor RowLayout::ids(const at::Tensor& rows) {
  return view_of(rows, 0, sizeof(std::int64_t), at::kLong).squeeze(1);
}

}  // namespace trireme::data
