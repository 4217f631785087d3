#include "core/comm/engine/channels.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace trireme::comm::engine {

Channels::Channels(std::shared_ptr<Engine> engine, const Channel& world, c10::intrusive_ptr<Backend> agreement)
    : engine_(std::move(engine)), world_(world), agreement_(std::move(agreement)) {}

std::shared_ptr<const Channel> Channels::take(const std::vector<int>& ranks, const std::string& axis) {
  const auto index = agree(ranks, axis);
  const auto number = ++taken_;
  auto& slot = slots_[index];
  if (ranks.empty()) return nullptr;
  if (!slot.context) {
    slot.spoiled = true;
    // By the agreement all members are here, and use the wire for nothing else, so this cannot wait for long.
    slot.context = engine_->exclusively(
        [&] { return engine_->wire().open(world_, ranks, axis, static_cast<std::uint64_t>(index) + 1); });
    slot.spoiled = false;
  }
  auto channel = std::make_shared<Channel>(world_);
  channel->context = *slot.context;
  channel->rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), world_.rank) - ranks.begin());
  channel->size = static_cast<int>(ranks.size());
  channel->ranks = ranks;
  channel->axis = axis;
  channel->flight = flight::join(axis, ranks, number);
  channel->traffic = slot.traffic;
  slot.user = channel;
  return channel;
}

/// If all members of a group pass the same list, their marks add up to zero. So a wrong list becomes an error on every
/// rank instead of a hang.
std::int64_t Channels::mark(const std::vector<int>& ranks, const std::string& axis) const {
  if (ranks.empty()) return 0;
  std::uint64_t hash = 1469598103934665603;  // FNV-1a
  const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 1099511628211; };
  for (const char c : axis) add(static_cast<unsigned char>(c));
  for (const int rank : ranks) add(static_cast<std::uint64_t>(rank));
  const bool first = ranks.front() == world_.rank;
  return static_cast<std::int64_t>(first ? hash * (ranks.size() - 1) : ~hash + 1);
}

/// Summed over the world, this is zero when the slot can be reused for a partition in which this rank is in the group
/// `ranks`. When no rank uses the slot any more, nothing is being sent or received, so a difference between all that
/// was sent and received is a message that was never received.
std::int64_t Channels::claim(const Slot& slot, const std::vector<int>& ranks) {
  constexpr std::int64_t kTaken = std::int64_t{1} << 40;
  if (slot.spoiled || slot.ranks != ranks || !slot.user.expired()) return kTaken;
  return slot.traffic->sent - slot.traffic->received;
}

std::size_t Channels::agree(const std::vector<int>& ranks, const std::string& axis) {
  auto sums = at::zeros({1 + static_cast<std::int64_t>(slots_.size())}, at::kLong);
  auto* const sum = sums.mutable_data_ptr<std::int64_t>();
  sum[0] = mark(ranks, axis);
  for (std::size_t i = 0; i < slots_.size(); ++i) sum[1 + i] = claim(slots_[i], ranks);
  std::vector<at::Tensor> tensors{sums};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  agreement_->allreduce(tensors, options)->wait();
  if (sum[0] != 0)
    throw CommError(fmt::format("group {}: the ranks passed different lists of members; this rank passed [{}]", axis,
                                fmt::join(ranks, ", ")));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (sum[1 + i] == 0) return i;
  slots_.emplace_back().ranks = ranks;
  return slots_.size() - 1;
}

}  // namespace trireme::comm::engine
