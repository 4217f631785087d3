// How the ranks of a pipeline agree on the tensors between their stages: two examples, of 2 and of 3 samples of zeros,
// go through all stages once, without dropout, and each stage sends the shapes and dtypes of its outputs to the next.
// This is repeated only for inputs of a new kind.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/executor.h"

namespace trireme::pipeline {
namespace {

constexpr std::size_t kMostKinds = 256;

/// What the boundaries depend on: the dtypes of the inputs, and their shapes without the sample dimension.
std::string kind_of(const data::Batch& batch, bool training) {
  std::string kind = training ? "training" : "evaluation";
  for (const auto& [name, input] : batch.inputs)
    kind += fmt::format(" {} {} {}", name, c10::toString(input.scalar_type()), fmt::join(input.sizes().slice(1), ","));
  return kind;
}

/// Zeros of these shapes with another number of samples.
nn::NamedTensors zeros_like(const nn::NamedTensors& tensors, std::int64_t samples, c10::Device device) {
  nn::NamedTensors out;
  for (const auto& [name, tensor] : tensors) {
    auto shape = tensor.sizes().vec();
    shape.front() = samples;
    out.set(name, at::zeros(shape, tensor.options().device(device).pinned_memory(false)));
  }
  return out;
}

data::Batch example(const data::Batch& like, std::int64_t samples, c10::Device device) {
  data::Batch batch;
  batch.inputs = zeros_like(like.inputs, samples, device);
  batch.targets = zeros_like(like.targets, samples, device);
  batch.sample_ids = at::arange(samples, at::kLong);
  return batch;
}

}  // namespace

void Executor::agree(const std::vector<data::Batch>& micro, bool training) {
  boundaries_.clear();
  if (rules_.size() > kMostKinds) rules_.clear();
  for (const auto& batch : micro) {
    const auto kind = kind_of(batch, training);
    if (rules_.count(kind) == 0) {
      const auto two = sample(batch, 2, training), three = sample(batch, 3, training);
      std::map<int, BoundaryRule> rules;
      for (const auto& [stage, boundary] : two) rules[stage] = BoundaryRule(boundary, three.at(stage));
      rules_.emplace(kind, std::move(rules));  // stored only if all stages agreed
    }
    boundaries_.push_back(&rules_.at(kind));
  }
}

/// The outputs of a stage. Whether an output wants a gradient does not depend on the example's graph, because other
/// samples may use other weights.
static Boundary passed_on(const Tensors& made, bool wanted) {
  auto boundary = boundary_of(made);
  for (auto& spec : boundary) spec.requires_grad = wanted && at::isFloatingType(spec.dtype);
  return boundary;
}

/// The boundaries before and after each of this rank's stages.
std::map<int, Boundary> Executor::sample(const data::Batch& like, std::int64_t samples, bool training) {
  const at::AutoGradMode with_graph(training);
  const auto batch = example(like, samples, links_.device());
  std::map<int, Boundary> out;
  for (int stage = 0; stage + 1 < schedule_->stages(); ++stage) {
    const auto current = schedule_->location_of(stage), next = schedule_->location_of(stage + 1);
    if (current.rank == links_.rank()) {
      bool wanted = training && chunks_.trains(current.chunk);
      if (stage > 0)
        for (const auto& spec : out.at(stage)) wanted = wanted || spec.requires_grad;
      auto inputs = stage == 0 ? Tensors() : as_non_leaves(zeros(out.at(stage), links_.device()));
      out[stage + 1] = passed_on(chunks_.probe(current.chunk, std::move(inputs), batch), wanted);
      if (next.rank != current.rank) links_.send_spec(next.rank, out[stage + 1]);
    } else if (next.rank == links_.rank()) {
      out[stage + 1] = links_.recv_spec(current.rank);
    }
  }
  return out;
}

}  // namespace trireme::pipeline
