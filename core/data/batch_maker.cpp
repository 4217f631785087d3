#include "core/data/batch_maker.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::data {

struct PendingCopies::State {
  explicit State(const c10::Stream& stream) : done(stream.device_type()) {}
  mutable c10::Event done;  ///< block() is not const
  std::vector<at::Tensor> copies;
};

void PendingCopies::wait() const {
  if (!state_) return;
  for (const auto& copy : state_->copies) {
    const auto current = c10::impl::VirtualGuardImpl(copy.device().type()).getStream(copy.device());
    state_->done.block(current);
    copy.record_stream(current);
  }
}

DeviceCopy::DeviceCopy(c10::Device device) : device_(device) {
  if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

PendingCopies DeviceCopy::start(const std::vector<at::Tensor*>& tensors) const {
  PendingCopies pending;
  if (!stream_) {
    for (auto* tensor : tensors) *tensor = tensor->to(device_);
    return pending;
  }
  const c10::StreamGuard guard(*stream_);
  auto state = std::make_shared<PendingCopies::State>(*stream_);
  for (auto* tensor : tensors) {
    *tensor = tensor->to(device_, /*non_blocking=*/true);
    state->copies.push_back(*tensor);
  }
  state->done.record(*stream_);
  pending.state_ = std::move(state);
  return pending;
}

namespace {

/// Makes a tensor of zero samples. Variable sizes become 1, because a model may reject a size of 0.
at::Tensor empty_of(const nn::SampleTensor& tensor) {
  std::vector<std::int64_t> shape{0};
  for (const auto size : tensor.shape) shape.push_back(size == -1 ? 1 : size);
  return at::empty(shape, tensor.dtype);
}

bool same_sizes(const nn::SampleTensor& declared, const at::Tensor& batch) {
  for (std::size_t d = 0; d < declared.shape.size(); ++d)
    if (declared.shape[d] != -1 && declared.shape[d] != batch.sizes()[d + 1]) return false;
  return true;
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

BatchMaker::BatchMaker(std::shared_ptr<Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      rows_(dataset_->rows()),
      combines_(options_.augment && !dataset_->combined_targets().empty()),
      device_copy_(options_.device),
      spec_(dataset_->spec()) {
  TRIREME_REQUIRE(!combines_ || rows_ != nullptr,
                  "a data set with combined_targets() needs rows(), whose transform_batch() combines the samples");
  if (combines_)
    for (auto& target : dataset_->combined_targets()) spec_.targets.push_back(std::move(target));
  for (const auto& input : spec_.inputs) {
    if (needs(input)) inputs_.push_back(input);
    if (needs(input) || options_.exchange) read_names_.push_back(input.name);
  }
  if (rows_ == nullptr) return;
  std::vector<std::string> first;
  for (const auto& input : rows_->row_spec(options_.side_inputs, options_.augment).inputs) first.push_back(input.name);
  layout_.emplace(rows_->row_spec(read_names_, options_.augment), first);
}

bool BatchMaker::needs(const nn::SampleTensor& input) const {
  const auto& needed = options_.needed;
  return !needed || input.varies() || std::find(needed->begin(), needed->end(), input.name) != needed->end();
}

StepSamples BatchMaker::start(std::vector<std::int64_t> ids, bool repeat_first) const {
  const auto count = static_cast<std::int64_t>(ids.size());
  StepSamples step{.ids = std::move(ids), .repeats_first = repeat_first && count > 0};
  if (layout_)
    step.rows = at::empty({count + (step.repeats_first ? 1 : 0), layout_->bytes()},
                          at::TensorOptions(at::kByte).pinned_memory(options_.device.is_cuda()));
  else
    step.samples.resize(step.ids.size());
  return step;
}

bool BatchMaker::read(StepSamples& step, std::size_t at, std::int64_t id, std::int64_t epoch) const {
  auto sample = rows_ != nullptr  ? rows_->read(read_names_, id, epoch, options_.augment)
                : options_.needed ? dataset_->get_with(read_names_, id, epoch, options_.augment)
                                  : dataset_->get(id, epoch, options_.augment);
  step.ids[at] = sample ? id : kLeftOut;
  if (rows_ != nullptr)
    layout_->write(sample, step.ids[at], step.rows, static_cast<std::int64_t>(at));
  else
    step.samples[at] = std::move(sample);
  return step.ids[at] != kLeftOut;
}

void BatchMaker::upload(StepSamples& step) const {
  if (!layout_) return;
  if (step.repeats_first) step.rows[-1].copy_(step.rows[0]);
  step.copies = device_copy_.start({&step.rows});
}

std::vector<RawBatch> BatchMaker::collect(StepSamples step, const std::vector<shard::Range>& micro) const {
  std::vector<RawBatch> out;
  for (const auto& positions : micro) out.push_back(layout_ ? rows_of(step, positions) : collate(step, positions));
  return out;
}

RawBatch BatchMaker::rows_of(const StepSamples& step, const shard::Range& positions) const {
  RawBatch raw{.copies = step.copies};
  for (auto at = positions.begin; at < positions.end; ++at)
    if (const auto id = step.ids[static_cast<std::size_t>(at)]; id != kLeftOut) {
      raw.kept.push_back(at - positions.begin);
      raw.ids.push_back(id);
    }
  if (raw.ids.empty()) return raw;
  if (static_cast<std::int64_t>(raw.kept.size()) == positions.size()) raw.kept.clear();
  raw.rows = step.rows.narrow(0, positions.begin, positions.size() + (combines_ ? 1 : 0));
  return raw;
}

/// The elements of the inputs whose size varies from sample to sample.
std::int64_t BatchMaker::varying_elements(const nn::NamedTensors& inputs) const {
  std::int64_t elements = 0;
  for (const auto& input : inputs_)
    if (const auto* tensor = input.varies() ? inputs.find(input.name) : nullptr) elements += tensor->numel();
  return elements;
}

RawBatch BatchMaker::collate(StepSamples& step, const shard::Range& positions) const {
  RawBatch raw;
  std::vector<Sample> samples;
  for (auto at = static_cast<std::size_t>(positions.begin); at < static_cast<std::size_t>(positions.end); ++at)
    if (auto& sample = step.samples[at]) {
      samples.push_back(*std::move(sample));
      raw.ids.push_back(step.ids[at]);
    }
  if (samples.empty()) return raw;
  std::int64_t unpadded = 0;
  for (const auto& sample : samples) unpadded += varying_elements(sample.inputs);
  raw.tensors = dataset_->collate(std::move(samples), raw.ids);
  raw.elements = varying_elements(raw.tensors.inputs);
  raw.padding = raw.elements - unpadded;
  std::vector<at::Tensor*> copied;
  for (auto* tensors : {&raw.tensors.inputs, &raw.tensors.targets})
    for (auto& [name, tensor] : *tensors) {
      if (options_.device.is_cuda()) tensor = tensor.pin_memory();
      copied.push_back(&tensor);
    }
  raw.copies = device_copy_.start(copied);
  return raw;
}

Sample BatchMaker::transformed(const RawBatch& raw) const {
  // Only an evaluation leaves samples out, and it combines none.
  const auto rows = raw.kept.empty() ? raw.rows : raw.rows.index_select(0, at::tensor(raw.kept).to(raw.rows.device()));
  auto made = rows_->transform_batch(layout_->tensors(rows), combines_);
  // Tensors that are still views would keep the rows, and surprise a model that expects dense memory.
  for (auto* tensors : {&made.inputs, &made.targets})
    for (auto& [name, tensor] : *tensors) tensor = tensor.contiguous();
  return made;
}

Batch BatchMaker::finish(RawBatch raw) const {
  raw.copies.wait();
  auto made = raw.ids.empty() ? no_samples() : layout_ ? transformed(raw) : std::move(raw.tensors);
  if (!raw.ids.empty()) check(made, raw.ids);
  Batch batch{.inputs = std::move(made.inputs), .targets = std::move(made.targets)};
  for (auto* tensors : {&batch.inputs, &batch.targets})
    for (auto& [name, tensor] : *tensors)
      if (tensor.is_floating_point()) tensor = tensor.to(options_.dtype);
  const auto size = static_cast<std::int64_t>(raw.ids.size());
  if (options_.needed) add_remote_inputs(batch, size);
  batch.sample_ids = at::tensor(raw.ids, at::kLong);
  return batch;
}

Sample BatchMaker::no_samples() const {
  Sample none;
  for (const auto& input : inputs_) none.inputs.set(input.name, empty_of(input).to(options_.device));
  for (const auto& target : spec_.targets) none.targets.set(target.name, empty_of(target).to(options_.device));
  return none;
}

void BatchMaker::check(const Sample& made, const std::vector<std::int64_t>& ids) const {
  check_declared(made.inputs, inputs_);
  check_declared(made.targets, spec_.targets);
  if (!options_.strict) return;
  for (const auto& input : inputs_)
    if (const auto& tensor = made.inputs[input.name]; !same_sizes(input, tensor))
      throw DataError(
          fmt::format("{} of {} is [{}], but the data set's spec() says {}. In a pipeline, ranks that do not read "
                      "the inputs rely on it; a size that varies must be -1 there",
                      input.name, fmt::format("sample{} {}", ids.size() == 1 ? "" : "s", fmt::join(ids, ", ")),
                      fmt::join(tensor.sizes().slice(1), ", "), input.text()));
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
