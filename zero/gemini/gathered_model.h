// GatheredModel: stage 3 of ZeRO. Weights too are shared out; a block's are gathered just before it runs, forward and
// backward, and released after.
//
//   forward   enter(block): gather its chunks, send for those of the blocks that come next    leave(block): release
//   backward  the same, called from brackets around the block in the graph; each chunk's gradients are reduce-scattered
//             when they are complete
//
// Gathers and reductions share a group, so all ranks must issue them in one order, also where a parameter has no
// gradient on some of them. Reductions therefore set out at one place alone: where the backward pass leaves the first
// block that a chunk belongs to. Which block comes next is learned in the first pass and the same on every rank. Memory
// for P elements over N ranks: P/N of weights, gradients, masters and moments each, one block's weights (two where one
// follows itself, as the last does at the turn of a pass), and `prefetch` blocks'. Traffic a microbatch: 2P gathered,
// less what the next block to run still needs, and P reduced.
//
// A pipeline runs some of the blocks for one microbatch, then for another: there a pass is all that a rank has in a
// step, and P what it holds. Where a backward pass comes in two parts the weights' part enters and leaves blocks too,
// for 3P gathered: nodes that make a weight's gradient may read it (a layer norm's do). The first stage, which has no
// input's gradient to make first, has its pass in one.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/nn/backward_hook.h"
#include "zero/gemini/block_order.h"
#include "zero/gemini/chunk_manager.h"
#include "zero/sharded_model.h"

namespace trireme::zero {

class GatheredModel : public ShardedModel {
 public:
  /// `prefetch`: blocks whose weights are sent for ahead of their use. `keeper`: null, or decides which chunks stay on
  /// the device, and where all live.
  GatheredModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights, const BoostOptions& options,
                const ShardedOptions& sharded, GradGroups groups, c10::Device device, std::size_t prefetch,
                std::unique_ptr<ChunkManager> chunk_manager);
  nn::Tensors forward(const data::Batch& batch) override;
  nn::Tensors forward_blocks(std::size_t begin, std::size_t end, nn::Tensors inputs, const data::Batch& batch) override;
  void begin_pass() override;
  ScopeGuard shapes_alone() override;
  void pass_ended(int gradient_group = 0) override;
  void step_ended(std::vector<std::int64_t> state) override;
  void train(bool on) override;
  std::vector<std::string> memory_advice() const override;
  [[nodiscard]] const ChunkManager* chunk_manager() const { return chunk_manager_.get(); }
  std::int64_t peak_gathered_bytes() const override { return flat().peak_gathered_bytes(); }

 protected:
  nn::Tensors run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context) override;

 private:
  /// Backward passes through a block that are still to come, of one forward pass.
  using Uses = std::unordered_map<const nn::Block*, int>;

  void enter(const nn::Block& block);
  void leave();
  void backward_entered(const nn::Block& block, nn::BackwardPart part);
  void backward_left(const nn::Block& block, nn::BackwardPart part, Uses& uses);
  void release_used();
  /// Whether the keeper watches, or keeps: passes of training alone.
  [[nodiscard]] bool watched() const { return chunk_manager_ != nullptr && order_ == &training_order_; }
  [[nodiscard]] bool keeps() const { return watched() && chunk_manager_->keeps(); }

  std::unique_ptr<ChunkManager> chunk_manager_;
  std::size_t prefetch_;
  bool reduce_early_;
  bool shapes_alone_ = false;
  std::vector<std::size_t> blank_;  ///< buckets of zeros, while it is shapes alone
  /// Trained chunks that no earlier block has, but for those whose gradients come late.
  std::unordered_map<const nn::Block*, std::vector<std::size_t>> first_in_;
  std::unordered_set<const nn::Block*> trained_;  ///< blocks that have a trained chunk
  std::shared_ptr<Uses> uses_;                    ///< of the forward pass that runs; its graph keeps them
  BlockOrder training_order_, evaluation_order_;
  BlockOrder* order_ = &evaluation_order_;
};

}  // namespace trireme::zero
