// PipelinedModel: a model whose blocks are distributed over the ranks of a pipeline. Its executor (pipeline/) runs the
// microbatches through this rank's chunks (stage_chunks.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/booster/boosted.h"
#include "plugins/hybrid_parallel/stage_chunks.h"

namespace trireme::plugins {

class PipelinedModel : public BoostedModel {
 public:
  /// `loss_type`: the dtype in which losses are reported, on every rank.
  PipelinedModel(std::unique_ptr<zero::ShardedModel> model, StagePlan plan, at::ScalarType loss_type, comm::Mesh& mesh);

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
  StagePlan plan_;
  const comm::Group& pipeline_group_;
  StageChunks chunks_;
  pipeline::Executor executor_;
  std::vector<pipeline::Event> events_;  ///< of the last traced step
};

}  // namespace trireme::plugins
