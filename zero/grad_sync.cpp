#include "zero/grad_sync.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <memory>

#include "core/base/error.h"
#include "core/base/planned_device.h"

namespace trireme::zero {
namespace {

/// Partitioned gradients: the maximum number of reductions in flight before the oldest is waited for.
constexpr std::size_t kOnTheWay = 2;

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

struct ReadyHook : torch::autograd::PostAccumulateGradHook {
  ReadyHook(GradSync& to, std::size_t number) : sync(to), index(number) {}
  void operator()(const at::Tensor&) override { sync.ready(index); }
  GradSync& sync;
  std::size_t index;
};

}  // namespace

const char* GradSync::name_of(State state) {
  static constexpr std::array kNames{"idle", "filling", "reducing", "done"};
  return kNames.at(static_cast<std::size_t>(state));
}

GradSync::Filled::Filled(const Bucket& bucket)
    : plan(bucket),
      came(bucket.parameters.size(), false),
      written(bucket.parameters.size(), false),
      missing(bucket.parameters.size()) {}

GradSync::GradSync(const std::vector<Bucket>& buckets, const std::vector<nn::Declaration>& leaves,
                   GradSyncOptions options)
    : leaves_(leaves), options_(std::move(options)) {
  locations_.assign(leaves.size(), {buckets.size(), 0});
  used_.assign(leaves.size(), 0);
  parts_.resize(buckets.size());
  for (const auto& bucket : buckets) {
    if (!bucket.trained) continue;
    TRIREME_CHECK(bucket.ranks && bucket.layout.parts() == bucket.ranks->shards.size(),
                  "a bucket of {} parts was planned for other ranks", bucket.layout.parts());
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) locations_[bucket.parameters[i]] = {buckets_.size(), i};
    const auto at = buckets_.size();
    auto& gradient_group =
        gradient_groups_.try_emplace(bucket.gradient_group, GradientGroup{at, at, at, at}).first->second;
    TRIREME_CHECK(gradient_group.end == at, "the buckets of gradient group {} are not consecutive",
                  bucket.gradient_group);
    ++gradient_group.end;
    buckets_.emplace_back(bucket);
  }
}

void GradSync::hook() {
  for (const auto& bucket : buckets_) {
    if (options_.deferred_group && bucket.plan.gradient_group >= *options_.deferred_group) continue;
    for (const auto index : bucket.plan.parameters)
      torch::autograd::impl::set_post_acc_grad_hooks(leaves_[index].value, std::make_unique<ReadyHook>(*this, index));
  }
}

GradSync::~GradSync() {
  for (const auto& bucket : buckets_)
    for (const auto index : bucket.plan.parameters)
      torch::autograd::impl::set_post_acc_grad_hooks(leaves_[index].value, nullptr);
}

GradSync::GradientGroup& GradSync::group_of(std::size_t bucket) {
  return gradient_groups_.at(buckets_[bucket].plan.gradient_group);
}

void GradSync::move(Filled& bucket, State from, State to) {
  TRIREME_CHECK(bucket.state == from, "a gradient bucket in state {} cannot go from {} to {}", name_of(bucket.state),
                name_of(from), name_of(to));
  bucket.state = to;
}

at::TensorOptions GradSync::stored_options() const {
  const auto& like = leaves_[buckets_.front().plan.parameters.front()].value;
  return like.options().dtype(options_.accumulation_dtype.value_or(like.scalar_type())).requires_grad(false);
}

/// Prepares a bucket for the first gradient of a reduction.
void GradSync::begin(std::size_t index) {
  auto& bucket = buckets_[index];
  if (bucket.state == State::done) {
    // This is a further pass of the same step: the part that is already reduced must not be reduced again.
    to_host_.drop(index);
    bucket.sum = options_.partition ? parts_[index] : parts_[index].clone();
    move(bucket, State::done, State::idle);
  }
  if (bucket.state != State::idle) return;
  move(bucket, State::idle, State::filling);
  std::fill(bucket.written.begin(), bucket.written.end(), false);
  if (!bucket.full.defined()) bucket.full = at::zeros({bucket.plan.layout.total()}, stored_options());
}

void GradSync::take(std::size_t index, std::size_t item, const at::Tensor& gradient) {
  // All reductions of the last pass have been launched, and had until now to complete.
  if (auto& gradient_group = group_of(index); gradient_group.next == gradient_group.end) wait_all(gradient_group);
  begin(index);
  auto& bucket = buckets_[index];
  TRIREME_CHECK(bucket.state == State::filling && !bucket.came[item],
                "the gradient of {} was produced twice in one pass; its bucket is in state {}",
                leaves_[bucket.plan.parameters[item]].name, name_of(bucket.state));
  bucket.came[item] = true;
  --bucket.missing;
  const auto range = bucket.plan.layout.item(item);
  auto view = bucket.full.narrow(0, range.begin, range.size());
  if (!gradient.defined()) {
    if (!bucket.written[item]) view.zero_();
  } else {
    const auto flat = gradient.reshape(-1);
    if (bucket.written[item])
      view.add_(flat);
    else
      view.copy_(flat);
  }
  bucket.written[item] = true;
}

void GradSync::ready(std::size_t index) {
  const at::NoGradGuard no_grad;
  const auto [bucket, item] = locations_.at(index);
  TRIREME_CHECK(bucket < buckets_.size(), "{} has no gradient bucket", leaves_[index].name);
  auto& gradient = leaves_[index].value.mutable_grad();
  if (!gradient.defined()) return;
  used_[index] = 1;
  take(bucket, item, gradient);
  gradient = at::Tensor();
  if (options_.overlap && !held_) launch_full(group_of(bucket));
}

// Launched only in bucket order, whatever the order in which they fill, because the order must be the same on all
// ranks.
void GradSync::launch_full(GradientGroup& gradient_group) {
  while (gradient_group.next < gradient_group.end && buckets_[gradient_group.next].missing == 0)
    launch(gradient_group.next++);
}

void GradSync::launch(std::size_t index) {
  auto& waited = group_of(index).waited;
  if (options_.partition || options_.communication_dtype)  // with a communication dtype, a copy is sent
    while (index - waited >= kOnTheWay) wait_bucket(waited++);
  auto& bucket = buckets_[index];
  move(bucket, State::filling, State::reducing);
  const auto& ranks = *bucket.plan.ranks;
  if (ranks.everyone.size() == 1) return;
  bucket.sent = bucket.full.to(options_.communication_dtype.value_or(bucket.full.scalar_type()));
  if (ranks.shards.size() == 1) {  // not partitioned: the replicas all-reduce the whole bucket
    bucket.received = bucket.sent;
    bucket.work = ranks.replicas.all_reduce_async(bucket.received);
    return;
  }
  bucket.received = at::empty({bucket.plan.layout.part_size()}, bucket.sent.options());
  bucket.work = ranks.shards.reduce_scatter_into_async(bucket.received, bucket.sent);
}

void GradSync::wait_bucket(std::size_t index, const Further& further) {
  auto& bucket = buckets_[index];
  move(bucket, State::reducing, State::done);
  bucket.work.wait();
  const auto& ranks = *bucket.plan.ranks;
  if (ranks.shards.size() > 1 && ranks.replicas.size() > 1) ranks.replicas.all_reduce(bucket.received);
  const auto part = bucket.plan.layout.part(ranks.shards.rank());
  auto mine = bucket.full.narrow(0, part.begin, part.size());
  if (!options_.partition) {
    if (bucket.received.defined() && !bucket.received.is_same(bucket.full)) mine.copy_(bucket.received);
  } else {
    mine = bucket.received.defined() ? bucket.received.to(bucket.full.scalar_type()) : bucket.full;
    bucket.full = at::Tensor();
  }
  bucket.sent = bucket.received = at::Tensor();
  if (further) further(mine);
  if (bucket.sum.defined()) mine.add_(std::exchange(bucket.sum, {}));
  parts_[index] = mine;
  if (options_.on_host && options_.on_host(index)) to_host_.begin(index, mine);
}

void GradSync::wait_all(GradientGroup& gradient_group, const Further& further) {
  while (gradient_group.waited < gradient_group.next) wait_bucket(gradient_group.waited++, further);
  gradient_group.next = gradient_group.waited = gradient_group.begin;
}

void GradSync::close(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  for (std::size_t item = 0; item < buckets_[bucket].came.size(); ++item)
    if (!buckets_[bucket].came[item]) take(bucket, item, at::Tensor());
  if (!held_) launch_full(group_of(bucket));
}

void GradSync::end_pass(int gradient_group) {
  const at::NoGradGuard no_grad;
  const auto found = gradient_groups_.find(gradient_group);
  if (found == gradient_groups_.end()) return;  // no parameter of the group is trained
  const auto [begin, end, next, waited] = found->second;
  for (auto b = begin; b < end; ++b) close(b);
  for (auto b = begin; b < end; ++b) {
    std::fill(buckets_[b].came.begin(), buckets_[b].came.end(), false);
    buckets_[b].missing = buckets_[b].came.size();
  }
}

void GradSync::wait(int gradient_group, const Further& further) {
  const at::NoGradGuard no_grad;
  const auto found = gradient_groups_.find(gradient_group);
  if (found == gradient_groups_.end()) return;
  TRIREME_CHECK(found->second.next == found->second.end,
                "gradient group {} is waited for, but its reduction was not launched", gradient_group);
  TRIREME_CHECK(found->second.waited == found->second.begin, "gradient group {} has already been waited for in part",
                gradient_group);
  wait_all(found->second, further);
}

void GradSync::finish() {
  if (buckets_.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto& [number, gradient_group] : gradient_groups_)
    if (gradient_group.next == gradient_group.end) wait_all(gradient_group);
  for (const auto& bucket : buckets_)
    TRIREME_CHECK(bucket.state == State::done, "gradients were requested while a bucket is in state {}",
                  name_of(bucket.state));
  used_anywhere_ = used_on_any_rank();
  used_on_host_ = at::Tensor();
}

/// uint8 [parameters], on the device.
at::Tensor GradSync::used_on_any_rank() const {
  std::vector<std::shared_ptr<const ReducingRanks>> all;  // in an order that is the same on all ranks
  for (const auto& bucket : buckets_)
    if (std::find(all.begin(), all.end(), bucket.plan.ranks) == all.end()) all.push_back(bucket.plan.ranks);
  const auto device = stored_options().device();
  at::Tensor anywhere;
  for (const auto& ranks : all) {
    std::vector<std::uint8_t> used(used_.size(), 0);
    for (const auto& bucket : buckets_)
      for (const auto index : bucket.plan.parameters)
        if (bucket.plan.ranks == ranks) used[index] = used_[index];
    auto flags = at::tensor(used, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()))
                     .to(device, /*non_blocking=*/true);
    ranks->everyone.all_reduce(flags, comm::ReduceOp::max);
    anywhere = anywhere.defined() ? anywhere.bitwise_or_(flags) : flags;
  }
  return anywhere;
}

at::Tensor GradSync::unused(std::size_t index, bool on_host) {
  if (used_.at(index) != 0) return {};
  if (on_host && !used_on_host_.defined()) used_on_host_ = used_anywhere_.to(host_of(used_anywhere_.device()));
  return (on_host ? used_on_host_ : used_anywhere_)[static_cast<std::int64_t>(index)].eq(0);
}

void GradSync::reset() {
  std::fill(used_.begin(), used_.end(), std::uint8_t{0});
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    auto& bucket = buckets_[b];
    TRIREME_CHECK(bucket.state != State::reducing, "gradients were dropped while they are being reduced");
    bucket.state = State::idle;
    to_host_.drop(b);
    bucket.sum = parts_[b] = at::Tensor();
    if (options_.partition) bucket.full = at::Tensor();
  }
}

std::int64_t GradSync::bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& bucket = buckets_[b];
    bytes += bytes_of(bucket.full) + bytes_of(bucket.sum);
    if (!bucket.full.defined() || !parts_[b].defined() || !bucket.full.is_alias_of(parts_[b]))
      bytes += bytes_of(parts_[b]);
  }
  return bytes;
}

}  // namespace trireme::zero
