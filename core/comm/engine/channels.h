// Channels: one for each group of this process, reused when all members have released the previous group.
//
// Groups are made by partitions: in one call, every rank of the world names the group that it will be in, or none. One
// agreement over the world serves the whole partition; then each group opens its channel independently of the others.
//
// A wire's contexts are never closed (MPI's call for that is collective, and ranks release their groups in different
// orders). A program that boosts many models one after another would therefore accumulate them. So when a partition is
// made, the ranks of the world agree on the first earlier partition into the same groups whose channels are all unused.
// A channel is in use while its Channel lives (a backend or a running operation holds it), and for ever if a message
// was sent in it and never received: a later group must not receive that message. (NCCL communicators live until the
// world ends.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/engine/backend.h"

namespace trireme::comm::engine {

class Channels {
 public:
  /// @param world the channel of all ranks; `agreement` runs over it.
  Channels(std::shared_ptr<Engine> engine, const Channel& world, c10::intrusive_ptr<Backend> agreement);

  /// The channel of this rank's group of a new partition. `ranks`: the world ranks of its members in group order, the
  /// same list on each of them. Null if the list is empty. Collective over the world.
  /// @throws CommError on every rank when members of a group pass different lists, or the wire cannot open a channel.
  std::shared_ptr<const Channel> take(const std::vector<int>& ranks, const std::string& axis);

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
  std::size_t agree(const std::vector<int>& ranks, const std::string& axis);
  [[nodiscard]] std::int64_t mark(const std::vector<int>& ranks, const std::string& axis) const;
  [[nodiscard]] static std::int64_t claim(const Slot& slot, const std::vector<int>& ranks);

  std::shared_ptr<Engine> engine_;
  Channel world_;
  c10::intrusive_ptr<Backend> agreement_;
  std::uint64_t taken_ = 0;  // partitions so far
  std::vector<Slot> slots_;  // one per partition; the same number on every rank
};

}  // namespace trireme::comm::engine
