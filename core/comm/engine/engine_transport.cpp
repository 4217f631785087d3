#include "core/comm/engine/engine_transport.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/comm/partition.h"

namespace trireme::comm::engine {
namespace {

constexpr std::int64_t kLongestText = 512;

at::Tensor text_tensor(const std::string& text) {
  TRIREME_CHECK(static_cast<std::int64_t>(text.size()) < kLongestText, "a message of {} bytes is too long",
                text.size());
  auto tensor = at::zeros({kLongestText}, at::kByte);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace

/// The channels: one for each group of this process, reused when all members have released the previous group.
///
/// Groups are made by partitions: in one call, every rank of the world names the group that it will be in, or none. One
/// agreement over the world serves the whole partition; then each group opens its channel independently of the others.
///
/// A wire's contexts are never closed (MPI's call for that is collective, and ranks release their groups in different
/// orders). A program that boosts many models one after another would therefore accumulate them. So when a partition is
/// made, the ranks of the world agree on the first earlier partition into the same groups whose channels are all
/// unused. A channel is in use while its Channel lives (a backend or a running operation holds it), and for ever if a
/// message was sent in it and never received: a later group must not receive that message. (NCCL communicators live
/// until the world ends.)
class EngineTransport::Channels {
 public:
  /// @param world the channel of all ranks; `agreement` runs over it.
  Channels(std::shared_ptr<Engine> engine, const Channel& world, c10::intrusive_ptr<Backend> agreement)
      : engine_(std::move(engine)), world_(world), agreement_(std::move(agreement)) {}

  /// The channel of this rank's group of a new partition. `ranks`: the world ranks of its members in group order, the
  /// same list on each of them. Null if the list is empty. Collective over the world.
  /// @throws CommError on every rank when members of a group pass different lists, or the wire cannot open a channel.
  std::shared_ptr<const Channel> take(const std::vector<int>& ranks, const std::string& axis) {
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

 private:
  /// This rank's part of one partition.
  struct Slot {
    std::vector<int> ranks;                // its group; empty when it is in none
    std::optional<std::uint64_t> context;  // none until opened, and when it is in none
    std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
    std::weak_ptr<const Channel> user;
    bool spoiled = false;  // this rank could not open it, others may have
  };

  /// One all-reduce over the world checks that all ranks mean the same partition, and finds a slot to reuse: its index.
  std::size_t agree(const std::vector<int>& ranks, const std::string& axis) {
    auto sums = at::zeros({1 + static_cast<std::int64_t>(slots_.size())}, at::kLong);
    auto* const sum = sums.mutable_data_ptr<std::int64_t>();
    sum[0] = partition_mark(world_.rank, ranks, axis);
    for (std::size_t i = 0; i < slots_.size(); ++i) sum[1 + i] = claim(slots_[i], ranks);
    std::vector<at::Tensor> tensors{sums};
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    agreement_->allreduce(tensors, options)->wait();
    if (sum[0] != 0) throw contradictory_members(ranks, axis);
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (sum[1 + i] == 0) return i;
    slots_.emplace_back().ranks = ranks;
    return slots_.size() - 1;
  }

  /// Summed over the world, this is zero when the slot can be reused for a partition in which this rank is in the group
  /// `ranks`. When no rank uses the slot any more, nothing is being sent or received, so a difference between all that
  /// was sent and received is a message that was never received.
  static std::int64_t claim(const Slot& slot, const std::vector<int>& ranks) {
    constexpr std::int64_t kTaken = std::int64_t{1} << 40;
    if (slot.spoiled || slot.ranks != ranks || !slot.user.expired()) return kTaken;
    return slot.traffic->sent - slot.traffic->received;
  }

  std::shared_ptr<Engine> engine_;
  Channel world_;
  c10::intrusive_ptr<Backend> agreement_;
  std::uint64_t taken_ = 0;  // partitions so far
  std::vector<Slot> slots_;  // one per partition; the same number on every rank
};

EngineTransport::EngineTransport(const OperationSettings& settings) : settings_(settings) {}
EngineTransport::~EngineTransport() = default;

void EngineTransport::open(std::shared_ptr<Wire> wire, Channel world) {
  world_ = std::move(world);
  world_.axis = "world";
  world_.ranks.resize(static_cast<std::size_t>(world_.size));
  std::iota(world_.ranks.begin(), world_.ranks.end(), 0);
  world_.flight = flight::join("world setup", world_.ranks, 0);
  engine_ = std::make_shared<Engine>(std::move(wire));
  agreement_ = c10::make_intrusive<Backend>(engine_, std::make_shared<Channel>(world_),
                                            OperationSettings{settings_.first, settings_.first, settings_.check});
  channels_ = std::make_unique<Channels>(engine_, world_, agreement_);
}

void EngineTransport::close() {
  channels_.reset();
  agreement_.reset();
  engine_->stop();
}

void EngineTransport::join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) {
  using Type = c10d::ProcessGroup::BackendType;
  const auto channel = channels_->take(ranks, axis);
  if (group == nullptr) return;
  const auto backend = c10::make_intrusive<Backend>(engine_, channel, settings_);
  group->setBackend(c10::kCPU, Type::CUSTOM, backend);
  if (stage_cuda_) group->setBackend(c10::kCUDA, Type::CUSTOM, backend);
  group->setDefaultBackend(Type::CUSTOM);
}

std::string EngineTransport::decide(const std::string& mine, const Answer& answer) {
  std::vector<at::Tensor> input{text_tensor(mine)}, answered{at::zeros({kLongestText}, at::kByte)};
  std::vector<std::vector<at::Tensor>> all;
  if (world_.rank == 0) {
    all.emplace_back();
    for (int r = 0; r < world_.size; ++r) all[0].push_back(at::zeros({kLongestText}, at::kByte));
  }
  agreement_->gather(all, input, {.asyncOp = false})->wait();
  if (world_.rank == 0) {
    std::vector<std::string> said;
    for (const auto& text : all[0]) said.emplace_back(static_cast<const char*>(text.data_ptr()));
    answered[0] = text_tensor(answer(said));
  }
  agreement_->broadcast(answered, {.asyncOp = false})->wait();
  return static_cast<const char*>(answered[0].data_ptr());
}

void EngineTransport::stage_cuda(c10::Device device) {
  stage_cuda_ = true;
  engine_->use(device);
}

}  // namespace trireme::comm::engine
