// ShardedModel: stages 1 and 2 of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
// Parameter Models", 2020). Every rank computes with the full weights; gradients and optimizer state are partitioned.
//
// A step consists of:
//   forward, backward   full weights, in the working dtype
//   GradSync            reduce-scatters each bucket of gradients while the backward pass continues
//   ShardedOptimizer    computes the norm, clips, and updates this rank's part of each bucket
//   FlatWeights         all-gathers each bucket's new weights while the next one is updated
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/booster/local_model.h"
#include "zero/flat_weights.h"
#include "zero/grad_sync.h"

namespace trireme::zero {

struct ShardedOptions {
  bool partition_gradients = false;  ///< stage 2
  bool overlap_reduce = true;
  bool overlap_gather = false;          ///< weights are gathered during the next forward pass, block by block
  bool cast_inputs = true;              ///< cast to the working dtype before the forward pass
  bool hold_gradients = false;          ///< stages 2 and 3: keep full gradients over the microbatches of a step
  std::optional<int> deferred_group{};  ///< see grad_sync.h
  bool counts_loss = true;   ///< false: another rank computes the same loss, and this rank's gradient counts as zero
  bool outputs_fp32 = true;  ///< half precision: the criterion is given outputs in float32
  std::optional<at::ScalarType> communication_dtype{};  ///< of gradients in collectives; unset: their own dtype
  std::optional<at::ScalarType> accumulation_dtype{};   ///< of reduced gradients; unset: their own dtype
};

/// The parameters of the whole model, against which the user's patterns are matched (optim::make_groups()).
std::vector<optim::NamedTensor> named_parameters(nn::Model& model);

/// The options of FlatWeights for a run. `masters`: half precision has fp32 master weights.
FlatWeightsOptions weights_options(const BoostOptions& options, bool masters, c10::Device device);

/// Allocates and fills the weights of the source's model, slice by slice: they are initialised by name, or read from
/// its weights file. A rank never holds the full model, unless its buckets are replicated. Collective.
std::unique_ptr<FlatWeights> make_weights(const ModelSource& source, const FlatWeightsOptions& options,
                                          std::vector<Bucket> buckets, std::vector<Residency> residencies,
                                          const Log& log);

class ShardedModel : public LocalModel {
 public:
  /// Gradients and optimizer state are partitioned like the weights.
  ShardedModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights, const BoostOptions& options,
               const ShardedOptions& sharded, c10::Device device);

  /// The loss from which a backward pass starts. When the loss does not count it is multiplied by zero: the backward
  /// pass still runs, because it contains collectives.
  [[nodiscard]] at::Tensor scaled_loss(const at::Tensor& loss) const;
  ScopeGuard no_sync() override;
  bool reduces_each_microbatch() const override { return options_.partition_gradients && !options_.hold_gradients; }
  std::vector<shard::Slice> weights() override;
  void weights_changed() override;
  std::vector<shard::Slice> current_weights() override;
  std::vector<shard::Slice> gradients() override;
  ModelReport report() const override;

  /// Called before blocks are run: for the forward and backward pass of a microbatch, for all microbatches of a
  /// pipeline's step, or for an evaluation. forward() calls it itself.
  virtual void begin_pass() {}
  /// While the guard lives, blocks are run only for the shapes of their outputs, whatever the weights are. It involves
  /// no communication, so the other ranks of the partition need not run them too.
  virtual ScopeGuard shapes_alone() { return ScopeGuard(nullptr); }
  /// Called after a backward pass that completes the gradients of a gradient group (grad_sync.h).
  virtual void pass_ended(int gradient_group = 0) { sync_->end_pass(gradient_group); }
  /// Called after an update. `state`: bytes of optimizer state of each bucket. Collective.
  virtual void step_ended(std::vector<std::int64_t> /*state*/) {}
  /// Sets a callback for a bucket whose slices were moved between device and host, so that the state of these slices
  /// can be moved too.
  void on_move(std::function<void(std::size_t)> follow) { follow_ = std::move(follow); }
  [[nodiscard]] FlatWeights& flat() { return *weights_; }
  [[nodiscard]] const FlatWeights& flat() const { return *weights_; }
  [[nodiscard]] GradSync& sync() { return *sync_; }
  [[nodiscard]] const ShardedOptions& options() const { return options_; }

 protected:
  void moved(const std::vector<std::size_t>& buckets) {
    for (const auto bucket : buckets)
      if (follow_) follow_(bucket);
  }

 private:
  ShardedOptions options_;
  std::unique_ptr<FlatWeights> weights_;
  std::unique_ptr<GradSync> sync_;
  std::function<void(std::size_t)> follow_;
};

}  // namespace trireme::zero
