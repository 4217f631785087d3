#include "plugins/hybrid_parallel/pipelined.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/trace.h"
#include "core/shard/placement.h"
#include "pipeline/timeline.h"

namespace trireme::plugins {

PipelinedModel::PipelinedModel(std::unique_ptr<zero::ShardedModel> model, StagePlan plan, at::ScalarType loss_type,
                               comm::Mesh& mesh)
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
  return pipeline::picture_of(plan_.pipeline, events_, pipeline_group_, model_->flat().device(), columns);
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
