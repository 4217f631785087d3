#include "plugins/hybrid_parallel/pipelined.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/trace.h"
#include "core/nn/block.h"
#include "core/shard/placement.h"
#include "pipeline/timeline.h"

namespace trireme::plugins {

StageChunks::StageChunks(zero::ShardedModel& model, const pipeline::StagePlan& plan, at::ScalarType loss_type,
                         const comm::Group& ranks)
    : model_(model), plan_(plan), loss_type_(loss_type), ranks_(ranks) {
  const auto& leaves = model_.flat().leaves();
  for (std::size_t shared = 0; shared < plan_.shared.size(); ++shared)
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf)
      if (leaves[leaf].name == plan_.shared[shared].name && leaves[leaf].value.requires_grad())
        shared_.emplace_back(shared, leaf);
}

void StageChunks::begin_step(const Criterion& criterion, BoostedOptimizer& optimizer,
                             std::vector<nn::Tensors>* outputs) {
  criterion_ = &criterion;
  optimizer_ = &optimizer;
  outputs_ = outputs;
  loss_ = at::zeros({}, at::TensorOptions(loss_type_).device(model_.flat().device()));
  model_.begin_pass();
}

at::Tensor StageChunks::end_step() {
  reduce_shared();
  return std::exchange(loss_, {});
}

nn::Tensors StageChunks::forward(int chunk, nn::Tensors inputs, const data::Batch& batch) {
  const auto& [begin, end] = plan_.mine[static_cast<std::size_t>(chunk)];
  if (begin == 0) inputs = model_.first_inputs(batch);
  return model_.forward_blocks(static_cast<std::size_t>(begin), static_cast<std::size_t>(end), std::move(inputs),
                               batch);
}

nn::Tensors StageChunks::probe(int chunk, nn::Tensors inputs, const data::Batch& batch) {
  const bool training = at::GradMode::is_enabled();
  const auto no_weights = model_.shapes_alone();  // data-parallel ranks may see new shapes at different times
  model_.train(false);                            // no dropout, no running statistics
  auto made = forward(chunk, std::move(inputs), batch);
  model_.train(training);
  return made;
}

at::Tensor StageChunks::loss(const nn::Tensors& made, const data::Batch& batch) {
  const auto outputs = model_.as_outputs(made);
  const auto part = part_of_mean((*criterion_)(outputs, batch), batch.global_weight);
  loss_ += part.detach().to(loss_type_);
  if (outputs_ != nullptr) {
    outputs_->emplace_back();
    for (const auto& output : outputs) outputs_->back().push_back(output.detach());
  }
  return optimizer_->scaler().scale(model_.scaled_loss(part));
}

bool StageChunks::trains(int chunk) const {
  const auto& [begin, end] = plan_.mine[static_cast<std::size_t>(chunk)];
  for (auto block = begin; block < end; ++block)
    for (const auto& parameter : model_.module().blocks()[static_cast<std::size_t>(block)]->parameters())
      if (parameter.requires_grad()) return true;
  return false;
}

void StageChunks::before_weights(int, bool last) {
  model_.sync().hold(held_ || (!last && !model_.reduces_each_microbatch()));
}

void StageChunks::after_weights(int chunk, bool) {
  take_shared();
  model_.pass_ended(plan_.gradient_group_of(chunk));
}

/// Gradients of shared parameters are accumulated like others that wait for further passes, in the accumulation dtype.
void StageChunks::take_shared() {
  if (shared_.empty()) return;
  const auto held = model_.no_sync();
  for (const auto& [shared, leaf] : shared_) {
    if (!model_.flat().leaves()[leaf].value.grad().defined()) continue;
    model_.sync().ready(leaf);
    model_.sync().end_pass(plan_.deferred_group(shared));
  }
}

void StageChunks::reduce_shared() {
  if (shared_.empty() || held_) return;
  auto& sync = model_.sync();
  sync.hold(false);
  for (const auto& entry : shared_) sync.end_pass(plan_.deferred_group(entry.first));
  for (const auto& [shared, leaf] : shared_)
    sync.wait(plan_.deferred_group(shared),
              [&, leaf = leaf, shared = shared](at::Tensor& part) { sum_up(plan_.shared[shared], leaf, part); });
}

/// The first of the ranks that hold a parameter adds up the parts of all, in the order of `ranks`, and sends the sum
/// back. A rank may have had no gradient; if one rank had a gradient, the parameter counts as used on all.
void StageChunks::sum_up(const pipeline::StagePlan::Shared& shared, std::size_t leaf, at::Tensor& part) {
  const auto& ranks = shared.ranks;
  if (ranks.size() == 1) return;
  auto& sync = model_.sync();
  const bool mine = sync.used(leaf);
  auto used = at::full({1}, mine ? 1 : 0, at::TensorOptions(at::kInt).device(part.device()));
  if (ranks_.rank() != ranks.front()) {
    for (const auto& tensor : {used, part}) ranks_.send(tensor, ranks.front());
    for (const auto& tensor : {used, part}) ranks_.recv(tensor, ranks.front());
  } else {
    auto their_use = at::empty_like(used), theirs = at::empty_like(part);
    for (auto other = ranks.begin() + 1; other != ranks.end(); ++other) {
      ranks_.recv(their_use, *other);
      ranks_.recv(theirs, *other);
      used += their_use;
      part += theirs;
    }
    for (auto other = ranks.begin() + 1; other != ranks.end(); ++other)
      for (const auto& tensor : {used, part}) ranks_.send(tensor, *other);
  }
  // Only without a gradient of its own does the host need the value. A planned step has none: all have a gradient.
  if (!mine && !used.is_meta() && used.item<int>() > 0) sync.use(leaf);
}

PipelinedModel::PipelinedModel(std::unique_ptr<zero::ShardedModel> model, pipeline::StagePlan plan,
                               at::ScalarType loss_type, comm::Mesh& mesh)
    : model_(std::move(model)),
      plan_(std::move(plan)),
      pipeline_group_(mesh.group("pp")),
      chunks_(*model_, plan_, loss_type, pipeline_group_),
      executor_(plan_.pipeline, pipeline::Links(mesh, "pp"), chunks_) {
  executor_.watch([this](const pipeline::Event& event) {
    if (!trace::on()) return;
    events_.push_back(event);
    trace::add("compute", pipeline::describe(event), event.begin, event.end);
  });
}

at::Tensor PipelinedModel::forward_backward(const data::StepBatch& batch, const Criterion& criterion,
                                            BoostedOptimizer& optimizer, std::vector<nn::Tensors>* outputs) {
  if (trace::on()) events_.clear();
  chunks_.begin_step(criterion, optimizer, outputs);
  executor_.train(batch.micro);
  return chunks_.end_step();
}

nn::Tensors PipelinedModel::forward(const data::Batch& batch) {
  TRIREME_REQUIRE(!at::GradMode::is_enabled(),
                  "BoostedModel::forward() of a pipeline is only for evaluation, under at::NoGradGuard; train with "
                  "Boosted::train_step() or forward_backward()");
  const int pieces = pipeline_group_.size();  // independent of the batch, because all data-parallel ranks must gather
                                              // weights equally often
  std::vector<data::Batch> micro;
  for (int i = 0; i < pieces; ++i) {
    const auto range = shard::split(batch.size(), pieces, i);
    const auto cut = [&](const at::Tensor& whole) { return whole.narrow(0, range.begin, range.size()); };
    auto& piece = micro.emplace_back(batch);
    for (auto* tensors : {&piece.inputs, &piece.targets})
      for (auto& [name, tensor] : *tensors) tensor = cut(tensor);
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
  return ScopeGuard([this, before = chunks_.hold(true)] { chunks_.hold(before); });
}

std::string PipelinedModel::chart(int columns) {
  return pipeline::picture_of(plan_.pipeline, events_, pipeline_group_, columns);
}

ModelReport PipelinedModel::report() const {
  std::vector<std::string> blocks;
  for (const auto& [begin, end] : plan_.stages)
    blocks.push_back(end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1));
  auto report = model_->report();
  report.notes.insert(report.notes.begin(),
                      fmt::format("pipeline {}; stages: blocks {}", plan_.pipeline.schedule, fmt::join(blocks, " | ")));
  return report;
}

}  // namespace trireme::plugins
