// Communicators: one for each group of this process, used again when all members have let go of the group before.
//
// None is ever freed: MPI_Comm_free is collective, and ranks let go of their groups in orders of their own. So a
// program that boosts many models one after the other would pile them up. Instead, when a group is made, the ranks of
// the world agree on the first communicator of the same ranks, in the same order, that nobody uses any more.
// A communicator is in use while its Channel lives (a backend or an operation under way holds it), and for good when a
// message lies in it that nobody received: a later group must not meet it. (NCCL's stay until the world ends.)
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mpi/backend.h"

namespace trireme::comm::mpi {

class Communicators {
 public:
  /// @param world the channel of all ranks; `agreement` runs over it.
  Communicators(std::shared_ptr<Engine> engine, const Channel& world, c10::intrusive_ptr<Backend> agreement);

  /// The channel of a new group of these world ranks; null on the others. Collective over the world.
  /// @throws CommError when the ranks of the world give different lists, or MPI makes no communicator.
  std::shared_ptr<const Channel> take(const std::vector<int>& ranks, const std::string& axis);

 private:
  struct Slot {
    MPI_Comm comm = MPI_COMM_NULL;  // null on ranks that are not members
    std::weak_ptr<const Channel> user;
    bool spoiled = false;  // this rank could not make it, others may have
  };

  void agree(const std::vector<int>& ranks, const std::string& axis);
  /// The largest of each element over the world. Driven by the engine, so operations under way go on on every rank.
  at::Tensor largest(at::Tensor values);
  /// The first that no member uses; a new one at the end when there is none.
  Slot& find(std::vector<Slot>& slots);
  [[nodiscard]] bool in_use(const Slot& slot);
  MPI_Comm create(const std::vector<int>& ranks, const std::string& axis);

  std::shared_ptr<Engine> engine_;
  Channel world_;
  c10::intrusive_ptr<Backend> agreement_;
  std::map<std::vector<int>, std::vector<Slot>> slots_;  // by world ranks; equally many on every rank
};

}  // namespace trireme::comm::mpi
