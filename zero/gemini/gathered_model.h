// GatheredModel: stage 3 of ZeRO. Weights are partitioned too; those of a block are all-gathered just before it runs,
// in the forward and in the backward pass, and released afterwards.
//
//   forward   enter(block): all-gathers its chunks, prefetches those of the next blocks; leave(block): releases them
//   backward  the same, called by backward hooks around the block; the gradients of each chunk are reduce-scattered
//             when they are complete
//
// All-gathers and reduce-scatters share a group, so all ranks must launch them in the same order, even if a parameter
// has no gradient on some ranks. Reductions are therefore launched at one point only: where the backward pass leaves
// the first block that a chunk belongs to. The order of blocks is recorded in the first pass and is the same on every
// rank. Memory for P elements over N ranks: P/N each for weights, gradients, masters and moments, plus the weights of
// one block (two where a block follows itself, as the last one does at the turn from forward to backward) and of
// `prefetch` blocks. Communication per microbatch: 2P all-gathered, less the chunks that the next block still needs,
// and P reduce-scattered.
//
// In a pipeline, a rank runs some of its blocks for one microbatch, then for another: a pass is then everything that
// the rank runs in a step, and P is the size of its stages. If a backward pass is split in two, the weights' part
// enters and leaves blocks too, so that 3P are all-gathered: nodes that compute a weight's gradient may read the weight
// (those of a layer norm do). The first stage needs no input gradient, so its backward pass is not split.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/nn/autograd/backward_hook.h"
#include "zero/gemini/chunk_manager.h"
#include "zero/sharded_model.h"

namespace trireme::zero {

class GatheredModel : public ShardedModel {
 public:
  /// `prefetch`: the number of blocks whose weights are gathered ahead of their use. `chunk_manager`: null, or decides
  /// the residency of chunks and which gathered chunks stay on the device.
  GatheredModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights, const BoostOptions& options,
                const ShardedOptions& sharded, c10::Device device, std::size_t prefetch,
                std::unique_ptr<ChunkManager> chunk_manager);
  nn::Tensors forward(const data::Batch& batch) override;
  void begin_pass() override;
  ScopeGuard shapes_alone() override;
  void pass_ended(int gradient_group = 0) override;
  void step_ended(std::vector<std::int64_t> state) override;
  void train(bool on) override;
  ModelReport report() const override;
  [[nodiscard]] const ChunkManager* chunk_manager() const { return chunk_manager_.get(); }

 private:
  /// For each block, the number of backward passes still to run for one forward pass.
  using Uses = std::unordered_map<const nn::Block*, int>;

  nn::Tensors before(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs);
  nn::Tensors after(const std::shared_ptr<nn::Block>& block, nn::Tensors outputs);
  void enter(const nn::Block& block);
  void leave();
  void backward_entered(const nn::Block& block, nn::BackwardPart part);
  void backward_left(const nn::Block& block, nn::BackwardPart part, Uses& uses);
  void release_used();
  /// Whether the chunk manager measures or manages the current pass; it does so only in training.
  [[nodiscard]] bool watched() const { return chunk_manager_ != nullptr && order_ == &training_order_; }
  [[nodiscard]] bool keeps_gathered_chunks() const { return watched() && chunk_manager_->keeps_gathered_chunks(); }

  std::unique_ptr<ChunkManager> chunk_manager_;
  std::size_t prefetch_;
  bool reduce_early_;
  bool shapes_alone_ = false;
  std::vector<std::size_t> zeroed_;  ///< buckets filled with zeros while shapes_alone_
  /// Trained chunks that no earlier block uses, except those of deferred groups.
  std::unordered_map<const nn::Block*, std::vector<std::size_t>> first_in_;
  std::unordered_set<const nn::Block*> trained_;  ///< blocks that have a trained chunk
  std::shared_ptr<Uses> uses_;                    ///< of the current forward pass; its graph shares ownership
  BlockOrder training_order_, evaluation_order_;
  BlockOrder* order_ = &evaluation_order_;
};

}  // namespace trireme::zero
