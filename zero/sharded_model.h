// ShardedModel: stages 1 and 2 of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
// Parameter Models", 2020). Every rank computes with the whole weights; gradients and what the optimizer keeps of a
// parameter are shared out.
//
// The way of a step:
//   forward, backward   weights whole, in the working dtype
//   GradSync            each bucket of gradients is reduce-scattered while the backward pass goes on
//   ShardedOptimizer    norm, clip, update of this rank's part of each bucket
//   FlatWeights         each bucket's new weights are gathered while the next one is updated
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/replicated.h"
#include "zero/flat_weights.h"
#include "zero/grad_sync.h"

namespace trireme::zero {

struct ShardedOptions {
  bool partition_gradients = false;  ///< stage 2
  bool overlap_reduce = true;
  bool overlap_gather = false;                          ///< weights arrive during the next forward pass, block by block
  bool offload = false;                                 ///< masters and optimizer state in host memory
  bool masters = true;                                  ///< half precision: float32 copies of this rank's weights
  bool cast_inputs = true;                              ///< to the working dtype, before the forward pass
  bool hold_gradients = false;                          ///< stage 2: full gradients over the microbatches of a step
  std::optional<std::int64_t> bucket_elements;          ///< unset: default_bucket_elements()
  std::optional<at::ScalarType> communication_dtype{};  ///< of gradients on their way; unset: their own
  std::optional<at::ScalarType> accumulation_dtype{};   ///< of kept gradients; unset: their own
};

class ShardedModel : public ReplicatedModel {
 public:
  /// Gives the source's model its memory, slice by slice. `groups`: shards is the axis that shares out. Collective.
  static std::unique_ptr<ShardedModel> make(ModelSource source, const BoostOptions& options,
                                            const ShardedOptions& sharded, GradGroups groups, c10::Device device,
                                            const Log& log);

  nn::Tensors forward(const data::Batch& batch) override;
  ScopeGuard no_sync() override;
  bool reduces_each_microbatch() const override { return options_.partition_gradients && !options_.hold_gradients; }
  std::vector<shard::Slice> weights() override;
  void weights_changed() override;
  std::vector<shard::Slice> gradients() override;
  std::int64_t parameter_bytes() const override { return weights_->weight_bytes(); }
  std::vector<std::string> notes() const override { return notes_; }

  [[nodiscard]] FlatWeights& flat() { return *weights_; }
  [[nodiscard]] GradSync& sync() { return *sync_; }
  [[nodiscard]] const ShardedOptions& options() const { return options_; }

 protected:
  nn::Tensors run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context) override;

 private:
  ShardedModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights, const BoostOptions& options,
               const ShardedOptions& sharded, const Precision& precision, GradGroups groups, c10::Device device);
  void write_notes(int parts);

  ShardedOptions options_;
  std::unique_ptr<FlatWeights> weights_;
  std::unique_ptr<GradSync> sync_;
  at::ScalarType working_;
  std::vector<std::string> notes_;
};

/// Elements of each bucket that a model of so many gets.
std::int64_t bucket_elements(const ShardedOptions& options, std::int64_t model_elements);

}  // namespace trireme::zero
