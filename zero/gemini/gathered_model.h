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
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "zero/gemini/block_order.h"
#include "zero/gemini/keeper.h"
#include "zero/sharded_model.h"

namespace trireme::zero {

class GatheredModel : public ShardedModel {
 public:
  /// `prefetch`: blocks whose weights are sent for ahead of their use. `keeper`: null, or decides which chunks stay on
  /// the device, and where all live.
  GatheredModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights, const BoostOptions& options,
                const ShardedOptions& sharded, GradGroups groups, c10::Device device, std::size_t prefetch,
                std::unique_ptr<Keeper> keeper);
  nn::Tensors forward(const data::Batch& batch) override;
  void pass_ended() override;
  void step_ended(std::vector<std::int64_t> state) override;
  void train(bool on) override;
  std::vector<std::string> memory_advice() const override;
  [[nodiscard]] const Keeper* keeper() const { return keeper_.get(); }
  std::int64_t peak_gathered_bytes() const override { return flat().peak_fetched_bytes(); }

 protected:
  nn::Tensors run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context) override;

 private:
  void enter(const nn::Block& block);
  void leave(const nn::Block& block);
  void backward_left(const nn::Block& block);
  void release_used(const nn::Block& block);
  /// Whether the keeper watches, or keeps: passes of training alone.
  [[nodiscard]] bool watched() const { return keeper_ != nullptr && order_ == &training_order_; }
  [[nodiscard]] bool keeps() const { return watched() && keeper_->keeps(); }

  std::unique_ptr<Keeper> keeper_;
  std::size_t prefetch_;
  bool reduce_early_;
  /// Trained chunks that no earlier block has.
  std::unordered_map<const nn::Block*, std::vector<std::size_t>> first_in_;
  std::unordered_map<const nn::Block*, int> to_come_;  ///< backward passes through a block that are still to come
  BlockOrder training_order_, evaluation_order_;
  BlockOrder* order_ = &evaluation_order_;
};

}  // namespace trireme::zero
