// Communicators: one for each group of this process, used again when all members have let go of the group before.
//
// Groups are made by partitions: in one call every rank of the world names the group that it will be in, or none. One
// agreement over the world serves the whole partition, and then each group makes its communicator by itself, side by
// side with the others: MPI_Comm_create_group costs messages among its members alone, where MPI_Comm_split would
// gather the colours of the whole world on each rank.
//
// None is ever freed: MPI_Comm_free is collective, and ranks let go of their groups in orders of their own. So a
// program that boosts many models one after the other would pile them up. Instead, when a partition is made, the ranks
// of the world agree on the first partition into the same groups whose communicators nobody uses any more.
// A communicator is in use while its Channel lives (a backend or an operation under way holds it), and for good when a
// message was sent in it that nobody received: a later group must not meet it. (NCCL's stay until the world ends.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mpi/backend.h"

namespace trireme::comm::mpi {

class Communicators {
 public:
  /// @param world the channel of all ranks; `agreement` runs over it.
  Communicators(std::shared_ptr<Engine> engine, const Channel& world, c10::intrusive_ptr<Backend> agreement);

  /// The channel of this rank's group of a new partition: `ranks`, the world ranks of its members in group order, the
  /// same list on each of them. Null where the list is empty. Collective over the world.
  /// @throws CommError on every rank when members of some group give different lists, or MPI makes no communicator.
  std::shared_ptr<const Channel> take(const std::vector<int>& ranks, const std::string& axis);

 private:
  /// This rank's part of one partition.
  struct Slot {
    std::vector<int> ranks;         // its group; empty where it is in none
    MPI_Comm comm = MPI_COMM_NULL;  // null until made, and where it is in none
    std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
    std::weak_ptr<const Channel> user;
    bool spoiled = false;  // this rank could not make it, others may have
  };

  /// One sum over the world: the ranks mean the same partition, and which slot may serve it.
  Slot& agree(const std::vector<int>& ranks, const std::string& axis);
  [[nodiscard]] std::int64_t mark(const std::vector<int>& ranks, const std::string& axis) const;
  [[nodiscard]] static std::int64_t claim(const Slot& slot, const std::vector<int>& ranks);
  MPI_Comm create(const std::vector<int>& ranks, const std::string& axis);

  std::shared_ptr<Engine> engine_;
  Channel world_;
  c10::intrusive_ptr<Backend> agreement_;
  std::vector<Slot> slots_;  // one a partition; equally many on every rank
};

}  // namespace trireme::comm::mpi
