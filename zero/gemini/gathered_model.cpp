#include "zero/gemini/gathered_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/nn/block.h"

namespace trireme::zero {

static ShardedOptions without_hooks(ShardedOptions options) {
  options.overlap_reduce = false;
  return options;
}

GatheredModel::GatheredModel(std::shared_ptr<nn::Model> model, std::unique_ptr<FlatWeights> weights,
                             const BoostOptions& options, const ShardedOptions& sharded, c10::Device device,
                             std::size_t prefetch, std::unique_ptr<ChunkManager> chunk_manager)
    : ShardedModel(std::move(model), std::move(weights), options, without_hooks(sharded), device),
      chunk_manager_(std::move(chunk_manager)),
      prefetch_(prefetch),
      reduce_early_(sharded.overlap_reduce) {
  set_block_hooks({.begin = [this] { uses_ = std::make_shared<Uses>(); },
                   .before = [this](const auto& block, nn::Tensors in) { return before(block, std::move(in)); },
                   .after = [this](const auto& block, nn::Tensors out) { return after(block, std::move(out)); }});
  if (chunk_manager_) chunk_manager_->watch(flat());
  std::set<std::size_t> seen;
  for (const auto& block : module().blocks())
    for (const auto bucket : flat().buckets_of(*block)) {
      const auto& chunk = flat().buckets()[bucket];
      if (!chunk.trained) continue;
      trained_.insert(block.get());
      if (sharded.deferred_group && chunk.gradient_group >= *sharded.deferred_group) continue;
      if (seen.insert(bucket).second) first_in_[block.get()].push_back(bucket);
    }
}

nn::Tensors GatheredModel::forward(const data::Batch& batch) {
  begin_pass();
  return ShardedModel::forward(batch);
}

void GatheredModel::begin_pass() {
  order_ = training() && at::GradMode::is_enabled() ? &training_order_ : &evaluation_order_;
  if (!keeps_gathered_chunks()) flat().release_all();  // chunks left by a forward pass without a backward pass
  order_->begin();
}

nn::Tensors GatheredModel::before(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs) {
  // In the backward pass, the hook of the outputs runs first and that of the inputs last. If no input has a gradient,
  // pass_ended() releases the chunks.
  if (at::GradMode::is_enabled()) {
    inputs = nn::register_backward_hook(
        std::move(inputs), [this, block, uses = uses_](nn::BackwardPart part) { backward_left(*block, part, *uses); });
    ++(*uses_)[block.get()];
  }
  enter(*block);
  return inputs;
}

nn::Tensors GatheredModel::after(const std::shared_ptr<nn::Block>& block, nn::Tensors outputs) {
  leave();
  if (!at::GradMode::is_enabled()) return outputs;
  // Always: which all-gathers a rank takes part in must not depend on whether its samples use a weight.
  return nn::register_backward_hook(
      std::move(outputs), [this, block](nn::BackwardPart part) { backward_entered(*block, part); },
      /*always=*/trained_.count(block.get()) != 0);
}

ScopeGuard GatheredModel::shapes_alone() {
  shapes_alone_ = true;
  return ScopeGuard([this] { shapes_alone_ = false; });
}

void GatheredModel::enter(const nn::Block& block) {
  if (shapes_alone_) {
    for (const auto bucket : flat().buckets_of(block)) {
      if (flat().zeros(bucket))
        zeroed_.push_back(bucket);
      else
        flat().wait(bucket);
    }
    return;
  }
  if (watched()) chunk_manager_->before_change();
  order_->enter(&block);
  if (watched()) chunk_manager_->enter(*order_, flat().buckets_of(block));
  for (const auto bucket : flat().buckets_of(block)) flat().all_gather(bucket);
  for (std::size_t ahead = 1; ahead <= prefetch_; ++ahead)
    if (const auto* next = order_->next(ahead); next != nullptr)
      for (const auto bucket : flat().buckets_of(*next))
        if (!watched() || chunk_manager_->has_room(bucket)) flat().all_gather(bucket);
  if (watched()) chunk_manager_->after_change();
  for (const auto bucket : flat().buckets_of(block)) flat().wait(bucket);
}

void GatheredModel::leave() {
  if (shapes_alone_) {
    for (const auto bucket : std::exchange(zeroed_, {})) flat().release(bucket);
    return;
  }
  if (keeps_gathered_chunks()) return;
  if (watched()) chunk_manager_->before_change();
  release_used();
  if (watched()) chunk_manager_->after_change();
}

/// Releases all chunks except those that the next blocks need.
void GatheredModel::release_used() {
  std::set<std::size_t> needed;
  for (std::size_t ahead = 1; ahead <= std::max<std::size_t>(1, prefetch_); ++ahead)
    if (const auto* next = order_->next(ahead); next != nullptr)
      needed.insert(flat().buckets_of(*next).begin(), flat().buckets_of(*next).end());
  for (std::size_t bucket = 0; bucket < flat().buckets().size(); ++bucket)
    if (needed.count(bucket) == 0) flat().release(bucket);
}

void GatheredModel::backward_entered(const nn::Block& block, nn::BackwardPart part) {
  if (part != nn::BackwardPart::weights || trained_.count(&block) != 0) enter(block);
}

void GatheredModel::backward_left(const nn::Block& block, nn::BackwardPart part, Uses& uses) {
  leave();
  if (part == nn::BackwardPart::inputs) return;
  // A block that ran twice is left twice; its gradients are complete the second time.
  if (--uses[&block] == 0 && reduce_early_)
    for (const auto bucket : first_in_[&block]) sync().close(bucket);
}

void GatheredModel::pass_ended(int gradient_group) {
  ShardedModel::pass_ended(gradient_group);
  if (watched()) chunk_manager_->before_change();
  if (!keeps_gathered_chunks()) release_used();
  if (watched()) chunk_manager_->pass_ended();
  if (watched()) chunk_manager_->after_change();
}

void GatheredModel::step_ended(std::vector<std::int64_t> state) {
  if (!chunk_manager_ || chunk_manager_->keeps_gathered_chunks()) return;
  for (std::size_t chunk = 0; chunk < state.size(); ++chunk) state[chunk] += flat().wide_master_bytes(chunk);
  chunk_manager_->step_ended(std::move(state));
  moved(chunk_manager_->apply_residencies(/*training=*/true));
}

ModelReport GatheredModel::report() const {
  auto report = ShardedModel::report();
  report.peak_gathered_bytes = flat().peak_gathered_bytes();
  report.memory_advice = chunk_manager_ ? chunk_manager_->advice() : std::vector<std::string>();
  return report;
}

void GatheredModel::train(bool on) {
  const bool before = training();
  ShardedModel::train(on);
  if (!chunk_manager_ || on == before) return;
  flat().release_all();
  moved(chunk_manager_->apply_residencies(on));
}

}  // namespace trireme::zero
