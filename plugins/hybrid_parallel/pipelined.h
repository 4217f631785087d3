// PipelinedModel: a model whose blocks are distributed over the ranks of a pipeline. Its executor (pipeline/) runs the
// microbatches through this rank's chunks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/booster/boosted.h"
#include "pipeline/executor.h"
#include "pipeline/stage_plan.h"
#include "zero/sharded_model.h"

namespace trireme::plugins {

/// What a pipeline's executor runs on this rank: the blocks of its chunks, the loss, and the reduction of their
/// gradients, by zero/.
///
/// The gradients of a chunk are a separate gradient group (zero/grad_sync.h): they are reduced over the data-parallel
/// ranks as soon as the chunk's last microbatch is done, while the pipeline drains. Parameters that several stages use
/// are held by each of them. When all microbatches are done, each stage's gradients of them are reduced like all
/// others. The first of the stages then adds up the parts of all and sends the sum back, so that all copies are updated
/// by the same bits, in whatever order a transport adds.
class StageChunks : public pipeline::Chunks {
 public:
  /// `loss_type`: the dtype in which losses are reported, on every rank. Refers to `model` and `plan`.
  StageChunks(zero::ShardedModel& model, const pipeline::StagePlan& plan, at::ScalarType loss_type,
              const comm::Group& ranks);

  /// Begins a step. `outputs`: if given, receives the model's outputs for each microbatch, without graph.
  void begin_step(const Criterion& criterion, BoostedOptimizer& optimizer, std::vector<nn::Tensors>* outputs);
  /// Reduces what the stages share, after all microbatches. Returns this rank's part of the loss, 0-dim.
  at::Tensor end_step();
  /// While held, gradients stay local.
  bool hold(bool on) { return std::exchange(held_, on); }

  nn::Tensors forward(int chunk, nn::Tensors inputs, const data::Batch& batch) override;
  nn::Tensors probe(int chunk, nn::Tensors inputs, const data::Batch& batch) override;
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch) override;
  [[nodiscard]] bool trains(int chunk) const override;
  void before_weights(int chunk, bool last) override;
  void after_weights(int chunk, bool last) override;

 private:
  void take_shared();
  void reduce_shared();
  void sum_up(const pipeline::StagePlan::Shared& shared, std::size_t leaf, at::Tensor& part);

  zero::ShardedModel& model_;
  const pipeline::StagePlan& plan_;
  at::ScalarType loss_type_;
  const comm::Group& ranks_;  ///< of the pipeline
  bool held_ = false;
  /// Trained parameters that this rank shares with other stages: (index in plan_.shared, index among the leaves).
  std::vector<std::pair<std::size_t, std::size_t>> shared_;

  // State of the current step.
  const Criterion* criterion_ = nullptr;
  BoostedOptimizer* optimizer_ = nullptr;
  std::vector<nn::Tensors>* outputs_ = nullptr;
  at::Tensor loss_;
};

class PipelinedModel : public BoostedModel {
 public:
  /// `loss_type`: the dtype in which losses are reported, on every rank.
  PipelinedModel(std::unique_ptr<zero::ShardedModel> model, pipeline::StagePlan plan, at::ScalarType loss_type,
                 comm::Mesh& mesh);

  at::Tensor forward_backward(const data::StepBatch& batch, const Criterion& criterion, BoostedOptimizer& optimizer,
                              std::vector<nn::Tensors>* outputs) override;
  bool is_pipeline() const override { return true; }
  /// Only for evaluation: the batch is split into as many microbatches as the pipeline has ranks.
  nn::Tensors forward(const data::Batch& batch) override;
  ScopeGuard no_sync() override;
  void train(bool on) override { model_->train(on); }
  nn::Model& module() override { return model_->module(); }
  std::vector<shard::Slice> weights() override { return model_->weights(); }
  std::vector<shard::Slice> current_weights() override { return model_->current_weights(); }
  void weights_changed() override { model_->weights_changed(); }
  std::vector<shard::Slice> gradients() override { return model_->gradients(); }
  ModelReport report() const override;
  std::string chart(int columns) override;
  void watch_blocks(BlockWatch watch) override { model_->watch_blocks(std::move(watch)); }

 private:
  std::unique_ptr<zero::ShardedModel> model_;
  pipeline::StagePlan plan_;
  const comm::Group& pipeline_group_;
  StageChunks chunks_;
  pipeline::Executor executor_;
  std::vector<pipeline::Event> events_;  ///< of the last traced step
};

}  // namespace trireme::plugins
