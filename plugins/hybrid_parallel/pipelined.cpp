#include "plugins/hybrid_parallel/pipelined.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/trace.h"
#include "core/nn/block.h"
#include "core/shard/placement.h"
#include "pipeline/timeline.h"

namespace trireme::plugins {

PipelinedModel::PipelinedModel(std::unique_ptr<zero::ShardedModel> model, StagePlan plan, at::ScalarType loss_type,
                               comm::Mesh& mesh)
    : model_(std::move(model)),
      plan_(std::move(plan)),
      loss_type_(loss_type),
      line_(mesh.group("pp")),
      executor_(plan_.pipeline, pipeline::Links(mesh, "pp"), *this) {
  executor_.watch([this](const pipeline::Event& event) {
    if (!trace::on()) return;
    events_.push_back(event);
    trace::add("compute", pipeline::describe(event), event.begin, event.end);
  });
}

at::Tensor PipelinedModel::forward_backward(const data::StepBatch& batch, const Criterion& criterion,
                                            BoostedOptimizer& optimizer, std::vector<nn::Tensors>* outputs) {
  criterion_ = &criterion;
  optimizer_ = &optimizer;
  outputs_ = outputs;
  if (trace::on()) events_.clear();
  loss_ = at::zeros({}, at::TensorOptions(loss_type_).device(model_->flat().device()));
  model_->begin_pass();
  executor_.train(batch.micro);
  reduce_shared();
  return std::exchange(loss_, {});
}

nn::Tensors PipelinedModel::forward(const data::Batch& batch) {
  TRIREME_CHECK(!at::GradMode::is_enabled(), "a pipeline trains by forward_backward(), see Booster");
  const int pieces = line_.size();  // whatever the batch: all data-parallel ranks gather weights equally often
  std::vector<data::Batch> micro;
  for (int i = 0; i < pieces; ++i) {
    const auto range = shard::split(batch.size(), pieces, i);
    const auto cut = [&](const at::Tensor& whole) { return whole.narrow(0, range.begin, range.size()); };
    auto& piece = micro.emplace_back(batch);
    for (auto& input : piece.inputs) input = cut(input);
    piece.labels = cut(batch.labels);
    piece.sample_ids = cut(batch.sample_ids);
  }
  model_->begin_pass();
  const auto made = executor_.evaluate(micro);
  nn::Tensors outputs;
  if (made.empty()) return outputs;
  for (std::size_t k = 0; k < made.front().size(); ++k) {
    nn::Tensors column;
    for (const auto& piece : made) column.push_back(piece[k]);
    outputs.push_back(at::cat(column));
  }
  return model_->as_outputs(std::move(outputs));
}

ScopeGuard PipelinedModel::no_sync() {
  const bool before = std::exchange(held_, true);
  return ScopeGuard([this, before] { held_ = before; });
}

nn::Tensors PipelinedModel::forward(int chunk, nn::Tensors inputs, const data::Batch& batch) {
  const auto& [begin, end] = plan_.mine[static_cast<std::size_t>(chunk)];
  if (begin == 0) inputs = model_->cast(std::move(inputs));
  return model_->forward_blocks(static_cast<std::size_t>(begin), static_cast<std::size_t>(end), std::move(inputs),
                                batch);
}

nn::Tensors PipelinedModel::probe(int chunk, nn::Tensors inputs, const data::Batch& batch) {
  const bool training = at::GradMode::is_enabled();
  const auto no_weights = model_->shapes_alone();  // data-parallel ranks may meet new shapes at other times
  model_->train(false);                            // no dropout, no running statistics
  auto made = forward(chunk, std::move(inputs), batch);
  model_->train(training);
  return made;
}

at::Tensor PipelinedModel::loss(const nn::Tensors& made, const data::Batch& batch) {
  const auto outputs = model_->as_outputs(made);
  const auto loss = (*criterion_)(outputs, batch);
  loss_ += (loss.sum.detach() / batch.global_weight).to(loss_type_);
  if (outputs_ != nullptr) {
    outputs_->emplace_back();
    for (const auto& output : outputs) outputs_->back().push_back(output.detach());
  }
  return optimizer_->scaler().scale(model_->counted(loss.sum / batch.global_weight));
}

void PipelinedModel::before_weights(int, bool last) {
  model_->sync().hold(held_ || (!last && !model_->reduces_each_microbatch()));
}

void PipelinedModel::after_weights(int chunk, bool) { model_->pass_ended(plan_.section_of(chunk)); }

void PipelinedModel::reduce_shared() {
  if (plan_.shared.empty() || held_) return;
  const at::NoGradGuard no_grad;
  auto& sync = model_->sync();
  const auto& leaves = model_->flat().leaves();
  for (const auto& shared : plan_.shared) {
    const auto leaf = std::find_if(leaves.begin(), leaves.end(), [&](const auto& l) { return l.name == shared.name; });
    if (leaf == leaves.end() || !leaf->value.requires_grad()) continue;
    auto value = leaf->value;
    sum_up(shared, value);
    if (value.grad().defined()) sync.ready(static_cast<std::size_t>(leaf - leaves.begin()));
  }
  sync.hold(false);
  sync.end_pass(plan_.late_section());
}

/// The first of the ranks that hold the leaf adds up the gradients of all, in their order, and gives the sum back. A
/// rank may have none; when none has one, none gets one.
void PipelinedModel::sum_up(const StagePlan::Shared& shared, at::Tensor& leaf) {
  const auto& ranks = shared.ranks;
  if (ranks.size() == 1) return;
  auto& gradient = leaf.mutable_grad();
  auto has = at::full({1}, gradient.defined() ? 1 : 0, at::TensorOptions(at::kInt).device(leaf.device()));
  auto sum = gradient.defined() ? gradient.contiguous() : at::zeros_like(leaf);
  if (line_.rank() != ranks.front()) {
    for (const auto& part : {has, sum}) line_.send(part, ranks.front());
    for (const auto& part : {has, sum}) line_.recv(part, ranks.front());
  } else {
    for (auto other = ranks.begin() + 1; other != ranks.end(); ++other) {
      auto their_has = at::zeros_like(has), theirs = at::zeros_like(sum);
      line_.recv(their_has, *other);
      line_.recv(theirs, *other);
      has += their_has;
      sum = sum + theirs;
    }
    for (auto other = ranks.begin() + 1; other != ranks.end(); ++other)
      for (const auto& part : {has, sum}) line_.send(part, *other);
  }
  gradient = has.item<int>() > 0 ? sum : at::Tensor();
}

std::string PipelinedModel::picture(int columns) {
  return pipeline::picture_of(plan_.pipeline, events_, line_, model_->flat().device(), columns);
}

std::vector<std::string> PipelinedModel::notes() const {
  std::vector<std::string> blocks;
  for (const auto& [begin, end] : plan_.stages)
    blocks.push_back(end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1));
  auto notes = model_->notes();
  notes.insert(notes.begin(),
               fmt::format("pipeline {}; stages: blocks {}", plan_.pipeline.schedule, fmt::join(blocks, " | ")));
  return notes;
}

}  // namespace trireme::plugins
