#include "zero/sharded_optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <utility>

#include "core/base/memory.h"
#include "core/base/planned_device.h"
#include "core/checkpoint/train_state.h"
#include "core/nn/block.h"
#include "core/shard/norm.h"

namespace trireme::zero {

ShardedOptimizer::ShardedOptimizer(ShardedModel& model, const BoostOptions& options, Norm norm, comm::Mesh& mesh,
                                   std::function<void()> before_step)
    : model_(model),
      options_(options.optimizer),
      norm_(std::move(norm)),
      before_step_(std::move(before_step)),
      mesh_(mesh),
      scaler_(Precision::parse(options.train.precision).loss_scale, options.train.loss_scale, mesh.world().device()) {
  set_max_norm(options.train.max_norm);
  auto& weights = model_.flat();
  slice_axes_ = norm_.axes;
  if (const auto stages = model.module().stage_blocks()) std::erase(slice_axes_, stages->axis);
  (void)mesh.group(slice_axes_);  // collective over the world, while only stages with parameters use it in a step
  // The user's patterns are matched once, against the whole model; the slots of a bucket are then assigned to groups by
  // name.
  groups_ = optim::make_groups(options_, named_parameters(model.module()));
  description_ = optim::make(options_, groups_)->describe();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (const auto& slot : std::exchange(groups_[g].slots, {})) group_of_[slot.name] = g;
  for (std::size_t b = 0; b < weights.buckets().size() && weights.buckets()[b].trained; ++b)
    parts_.push_back(make_part(b));
  model_.on_move([this, alive = std::weak_ptr<bool>(alive_)](std::size_t bucket) {
    if (!alive.expired() && bucket < parts_.size()) follow(bucket);  // later buckets are frozen
  });
}

ShardedOptimizer::Part ShardedOptimizer::make_part(std::size_t bucket) const {
  auto& weights = model_.flat();
  auto groups = groups_;
  std::vector<std::vector<std::size_t>> items(groups.size());
  for (std::size_t i = 0; i < weights.buckets()[bucket].parameters.size(); ++i) {
    const auto& slice = weights.slices()[weights.first_slice(bucket) + i];
    const auto g = group_of_.at(slice.name);
    groups[g].slots.push_back({slice.name, slice.value, {}});
    items[g].push_back(i);
  }
  Part part;
  for (const auto& of_group : items) part.items.insert(part.items.end(), of_group.begin(), of_group.end());
  part.optimizer = optim::make(options_, std::move(groups));
  return part;
}

/// Moves the optimizer state of a bucket whose slices have moved.
void ShardedOptimizer::follow(std::size_t bucket) {
  const memory::OfHost on_host(model_.flat().residency(bucket).offload_master);
  auto part = make_part(bucket);
  if (parts_[bucket].optimizer->state_bytes() > 0) {
    const auto from = parts_[bucket].optimizer->state(), to = part.optimizer->state();
    for (std::size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
  }
  parts_[bucket] = std::move(part);
}

void ShardedOptimizer::backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) {
  scaler_.scale(model_.scaled_loss(part_of_mean(loss_sum, global_weight))).backward();
  model_.pass_ended();
}

at::Tensor ShardedOptimizer::norm_of(const std::vector<at::Tensor>& parts) {
  auto& weights = model_.flat();
  std::vector<shard::PlacedTensor> placed;
  for (std::size_t b = 0; b < parts_.size(); ++b)
    for (std::size_t i = 0; i < weights.buckets()[b].parameters.size(); ++i)
      placed.push_back({&weights.slices()[weights.first_slice(b) + i].placement, weights.cut(parts[b], b, i)});
  auto norm = shard::global_norm(placed, mesh_, norm_.axes, norm_.power);
  return scaler_.enabled() ? norm * scaler_.inverse() : norm;
}

StepResult ShardedOptimizer::apply_gradients(double lr) {
  if (before_step_) before_step_();
  const at::NoGradGuard no_grad;
  auto& sync = model_.sync();
  auto& weights = model_.flat();
  weights.wait();
  weights.release_all();
  sync.finish();
  gradient_bytes_ = sync.bytes();
  StepResult result;
  result.grad_norm = norm_of(sync.parts());
  // The norm covers every element, so every rank sees a value that is not finite anywhere.
  const auto skip = at::isfinite(result.grad_norm).logical_not().to(at::kFloat);
  result.found_inf = skip;
  at::Tensor factor;
  if (max_norm() > 0) factor = shard::clip_factor(result.grad_norm, max_norm());
  if (scaler_.enabled()) factor = factor.defined() ? factor * scaler_.inverse() : scaler_.inverse();
  const Decision on_device{factor, skip};
  Decision on_host;  // read once, before the all-gathers of new weights are launched, since the read would wait for
                     // them too
  const auto host = host_of(skip.device());
  if (offloads()) on_host = {factor.defined() ? factor.to(host) : factor, skip.to(host)};
  const auto decision = [&](std::size_t b) -> const Decision& {
    return weights.residency(b).offload_master ? on_host : on_device;
  };
  const bool needs_sums = !parts_.empty() && parts_.front().optimizer->needs_slice_sums();
  if (needs_sums) add_slice_sums(decision);
  // The next forward pass starts with the weights of the last bucket, so its all-gather is launched first.
  for (std::size_t b = parts_.size(); b-- > 0;) {
    if (!needs_sums) set_gradients(b, decision(b));
    update(b, lr, decision(b));
    weights.copy_from_master(b);
  }
  if (!model_.options().overlap_gather) weights.wait();
  scaler_.update(result.found_inf);
  std::vector<std::int64_t> state(weights.buckets().size());
  for (std::size_t b = 0; b < parts_.size(); ++b) state[b] = parts_[b].optimizer->state_bytes();
  model_.step_ended(std::move(state));
  return result;
}

bool ShardedOptimizer::offloads() const {
  const auto& weights = model_.flat();
  for (std::size_t b = 0; b < parts_.size(); ++b)
    if (weights.residency(b).offload_master) return true;
  return false;
}

/// The norms of whole parameters, for all buckets at once. They are sorted by the parameters' names: tensor-parallel
/// ranks with slices of different sizes may have put these into other buckets.
void ShardedOptimizer::add_slice_sums(const std::function<const Decision&(std::size_t bucket)>& decision) {
  auto& weights = model_.flat();
  std::map<std::string, std::pair<at::Tensor, const shard::Placement*>> rows;
  for (std::size_t b = 0; b < parts_.size(); ++b) {
    set_gradients(b, decision(b));
    const memory::OfHost of_host(weights.residency(b).offload_master);
    const auto sums = parts_[b].optimizer->slice_sums(decision(b).skip);
    for (std::size_t i = 0; i < parts_[b].items.size(); ++i) {
      const auto& slice = weights.slices()[weights.first_slice(b) + parts_[b].items[i]];
      rows[slice.name] = {sums.select(0, static_cast<std::int64_t>(i)), &slice.placement};
    }
  }
  std::vector<at::Tensor> values;
  std::vector<const shard::Placement*> placements;
  for (const auto& [name, row] : rows) {
    values.push_back(row.first.to(mesh_.world().device()));
    placements.push_back(row.second);
  }
  const auto all = at::stack(values);
  shard::sum_over_slices(all, placements, mesh_, slice_axes_);
  std::int64_t at = 0;
  for (const auto& [name, row] : rows) row.first.copy_(all.select(0, at++));
}

/// Gives the slots of a bucket their gradients, unscaled and clipped.
void ShardedOptimizer::set_gradients(std::size_t bucket, const Decision& decision) {
  auto& weights = model_.flat();
  auto& sync = model_.sync();
  auto& part = parts_[bucket];
  const auto& factor = decision.factor;
  const auto& like = weights.slices()[weights.first_slice(bucket)].value;
  const bool on_host = weights.residency(bucket).offload_master;
  auto gradient = on_host ? sync.host_part(bucket) : sync.parts()[bucket];
  // Not in place: padding must stay zero, whatever the factor is. Half precision has neither the range nor the
  // precision for a gradient that is still scaled, or for the factor.
  if (factor.defined()) {
    const auto type = c10::elementSize(like.scalar_type()) < 4 ? at::kFloat : like.scalar_type();
    gradient = gradient.to(type) * factor.to(type);
  }
  gradient = gradient.to(like.options());
  std::size_t at = 0;
  for (auto& group : part.optimizer->groups())
    for (auto& slot : group.slots) {
      const auto item = part.items[at++];
      slot.grad = weights.cut(gradient, bucket, item);
      slot.skip = sync.unused(weights.buckets()[bucket].parameters[item], on_host);
    }
}

void ShardedOptimizer::update(std::size_t bucket, double lr, const Decision& decision) {
  auto& part = parts_[bucket];
  // Optimizer state is allocated in the first step.
  const memory::OfHost of_host(model_.flat().residency(bucket).offload_master);
  part.optimizer->step(lr, decision.skip);
  for (auto& group : part.optimizer->groups())
    for (auto& slot : group.slots) slot.grad = at::Tensor();
}

void ShardedOptimizer::zero_grad() { model_.sync().reset(); }

std::vector<shard::Slice> ShardedOptimizer::state() {
  std::vector<shard::Slice> out;
  for (std::size_t b = 0; b < parts_.size(); ++b) {
    const memory::OfHost on_host(model_.flat().residency(b).offload_master);
    for (auto& slice : checkpoint::states_of(*parts_[b].optimizer, model_.flat().slices()))
      out.push_back(std::move(slice));
  }
  return out;
}

std::int64_t ShardedOptimizer::bytes_where(const std::function<bool(const Residency&)>& counts) const {
  const auto& weights = model_.flat();
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < weights.buckets().size(); ++b)
    if (counts(weights.residency(b)))
      bytes += weights.master_bytes(b) + (b < parts_.size() ? parts_[b].optimizer->state_bytes() : 0);
  return bytes;
}

}  // namespace trireme::zero
