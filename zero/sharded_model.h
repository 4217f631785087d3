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

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/booster/replicated.h"
#include "zero/flat_weights.h"
#include "zero/grad_sync.h"

namespace trireme::zero {

struct ShardedOptions {
  bool partition_gradients = false;  ///< stage 2
  bool overlap_reduce = true;
  bool overlap_gather = false;          ///< weights arrive during the next forward pass, block by block
  bool cast_inputs = true;              ///< to the working dtype, before the forward pass
  bool hold_gradients = false;          ///< stage 2: full gradients over the microbatches of a step
  std::optional<int> deferred_group{};  ///< see grad_sync.h
  bool counts_loss = true;   ///< false: the loss is another rank's too, and the gradient of this one's counts nothing
  bool outputs_fp32 = true;  ///< half precision: the criterion gets outputs in float32
  std::optional<at::ScalarType> communication_dtype{};  ///< of gradients on their way; unset: their own
  std::optional<at::ScalarType> accumulation_dtype{};   ///< of kept gradients; unset: their own
};

/// Marks what the user's patterns freeze: before buckets are planned. @throws ConfigError
void freeze(nn::Model& model, const config::OptimizerOptions& options);

/// What the options say of weights. `masters`: of half precision, in fp32.
FlatWeightsOptions weights_options(const BoostOptions& options, bool masters, c10::Device device);

/// Gives the source's model its memory, slice by slice: drawn by name, or from its weights file. The model of a rank is
/// never whole unless its buckets stay. Collective.
std::unique_ptr<FlatWeights> make_weights(const ModelSource& source, const FlatWeightsOptions& options,
                                          std::vector<Bucket> buckets, std::vector<Residency> residencies,
                                          const GradGroups& groups, const Log& log);

class ShardedModel : public ReplicatedModel {
 public:
  /// `groups`: shards is the axis that shares out.
  ShardedModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights, const BoostOptions& options,
               const ShardedOptions& sharded, GradGroups groups, c10::Device device);

  nn::Tensors forward(const data::Batch& batch) override;
  /// A batch's inputs in the working dtype, if the options say so.
  [[nodiscard]] nn::Tensors to_compute_dtype(nn::Tensors inputs) const;
  /// A loss as a backward pass begins at it. One that does not count is still a pass, for the collectives in it.
  [[nodiscard]] at::Tensor scaled_loss(const at::Tensor& loss) const;
  ScopeGuard no_sync() override;
  bool reduces_each_microbatch() const override { return options_.partition_gradients && !options_.hold_gradients; }
  std::vector<shard::Slice> weights() override;
  void weights_changed() override;
  std::vector<shard::Slice> gradients() override;
  std::int64_t parameter_bytes() const override { return weights_->weight_bytes(); }
  std::vector<std::string> notes() const override { return notes_; }
  void note(std::string line) { notes_.push_back(std::move(line)); }

  /// Blocks are run from here on: for a microbatch, forward and backward, or for all that a pipeline has in a step; or
  /// in an evaluation. forward() says so itself.
  virtual void begin_pass() {}
  /// While it lives blocks run for the shapes that come out, whatever their weights are: no rank that shares these out
  /// need run them too.
  virtual ScopeGuard shapes_alone() { return ScopeGuard(nullptr); }
  /// A backward pass has ended that makes a section's gradients (grad_sync.h).
  virtual void pass_ended(int gradient_group = 0) { sync_->end_pass(gradient_group); }
  /// An update has ended. `state`: of each bucket, bytes of the optimizer's own. Collective.
  virtual void step_ended(std::vector<std::int64_t> /*state*/) {}
  /// Called for a bucket whose slices have moved: what belongs to them must follow.
  void on_move(std::function<void(std::size_t)> follow) { follow_ = std::move(follow); }
  [[nodiscard]] FlatWeights& flat() { return *weights_; }
  [[nodiscard]] const FlatWeights& flat() const { return *weights_; }
  [[nodiscard]] GradSync& sync() { return *sync_; }
  [[nodiscard]] const ShardedOptions& options() const { return options_; }

 protected:
  nn::Tensors run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context) override;
  void moved(const std::vector<std::size_t>& buckets) {
    for (const auto bucket : buckets)
      if (follow_) follow_(bucket);
  }

 private:
  ShardedOptions options_;
  std::unique_ptr<FlatWeights> weights_;
  std::unique_ptr<GradSync> sync_;
  at::ScalarType working_;
  std::vector<std::string> notes_;
  std::function<void(std::size_t)> follow_;
};

}  // namespace trireme::zero
