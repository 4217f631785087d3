#include "zero/gemini/gathered_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/nn/block.h"
#include "zero/gemini/bracket.h"

namespace trireme::zero {

void BlockOrder::enter(const nn::Block* block) {
  if (at_ < order_.size() && order_[at_] != block) order_.resize(at_);
  if (at_ == order_.size()) order_.push_back(block);
  ++at_;
}

const nn::Block* BlockOrder::next(std::size_t ahead) const {
  const auto index = at_ + ahead - 1;
  return index < order_.size() ? order_[index] : nullptr;
}

static ShardedOptions without_hooks(ShardedOptions options) {
  options.overlap_reduce = false;
  return options;
}

GatheredModel::GatheredModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights,
                             const BoostOptions& options, const ShardedOptions& sharded, GradGroups groups,
                             c10::Device device, std::size_t prefetch)
    : ShardedModel(std::move(model), std::move(weights), options, without_hooks(sharded), std::move(groups), device),
      prefetch_(prefetch),
      reduce_early_(sharded.overlap_reduce) {
  std::set<std::size_t> seen;
  for (const auto& block : module().blocks())
    for (const auto bucket : flat().buckets_of(*block))
      if (flat().buckets()[bucket].trained && seen.insert(bucket).second) first_in_[block.get()].push_back(bucket);
}

nn::Tensors GatheredModel::forward(const data::Batch& batch) {
  flat().release_all();  // what a pass without a backward pass has left
  to_come_.clear();
  order_ = training() && at::GradMode::is_enabled() ? &training_order_ : &evaluation_order_;
  order_->begin();
  return ShardedModel::forward(batch);
}

nn::Tensors GatheredModel::run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs,
                               const nn::Context& context) {
  const bool graph = at::GradMode::is_enabled();
  // Backward: the block's outputs come first, its inputs last. Where no input has a gradient, pass_ended() releases.
  if (graph) {
    inputs = on_backward(std::move(inputs), [this, block] { backward_left(*block); });
    ++to_come_[block.get()];
  }
  enter(*block);
  auto outputs = ShardedModel::run(block, std::move(inputs), context);
  leave(*block);
  if (graph) outputs = on_backward(std::move(outputs), [this, block] { enter(*block); });
  return outputs;
}

void GatheredModel::enter(const nn::Block& block) {
  order_->enter(&block);
  for (const auto bucket : flat().buckets_of(block)) flat().fetch(bucket);
  for (std::size_t ahead = 1; ahead <= prefetch_; ++ahead)
    if (const auto* next = order_->next(ahead); next != nullptr)
      for (const auto bucket : flat().buckets_of(*next)) flat().fetch(bucket);
  for (const auto bucket : flat().buckets_of(block)) flat().wait(bucket);
}

void GatheredModel::leave(const nn::Block& block) {
  std::set<std::size_t> needed;
  for (std::size_t ahead = 1; ahead <= std::max<std::size_t>(1, prefetch_); ++ahead)
    if (const auto* next = order_->next(ahead); next != nullptr)
      needed.insert(flat().buckets_of(*next).begin(), flat().buckets_of(*next).end());
  for (const auto bucket : flat().buckets_of(block))
    if (needed.count(bucket) == 0) flat().release(bucket);
}

void GatheredModel::backward_left(const nn::Block& block) {
  leave(block);
  // A block that ran twice is left twice; its gradients are complete the second time.
  if (--to_come_[&block] == 0 && reduce_early_)
    for (const auto bucket : first_in_[&block]) sync().close(bucket);
}

void GatheredModel::pass_ended() {
  ShardedModel::pass_ended();
  flat().release_all();
}

}  // namespace trireme::zero
