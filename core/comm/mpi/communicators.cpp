#include "core/comm/mpi/communicators.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/error.h"

namespace trireme::comm::mpi {

Communicators::Communicators(std::shared_ptr<Engine> engine, const Channel& world,
                             c10::intrusive_ptr<Backend> agreement)
    : engine_(std::move(engine)), world_(world), agreement_(std::move(agreement)) {}

std::shared_ptr<const Channel> Communicators::take(const std::vector<int>& ranks, const std::string& axis) {
  agree(ranks, axis);
  const auto mine = std::find(ranks.begin(), ranks.end(), world_.rank);
  auto& slot = find(slots_[ranks]);
  if (mine == ranks.end()) return nullptr;
  if (slot.comm == MPI_COMM_NULL) {
    slot.spoiled = true;
    slot.comm = create(ranks, axis);
    slot.spoiled = false;
  }
  auto channel = std::make_shared<Channel>(world_);
  channel->comm = slot.comm;
  channel->rank = static_cast<int>(mine - ranks.begin());
  channel->size = static_cast<int>(ranks.size());
  channel->ranks = ranks;
  channel->axis = axis;
  slot.user = channel;
  return channel;
}

/// All ranks reached this call with the same list: the communicators then match, and a wrong list is an error instead
/// of a hang.
void Communicators::agree(const std::vector<int>& ranks, const std::string& axis) {
  std::uint64_t hash = 1469598103934665603;  // FNV-1a
  for (const int rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank)) * 1099511628211;
  const auto mark = static_cast<std::int64_t>(hash >> 1);
  const auto both = largest(at::tensor({mark, -mark}, at::kLong));
  if (both[0].item<std::int64_t>() != mark || both[1].item<std::int64_t>() != -mark)
    throw CommError(
        fmt::format("group {}: the ranks of the world gave different lists; here [{}]", axis, fmt::join(ranks, ", ")));
}

at::Tensor Communicators::largest(at::Tensor values) {
  std::vector<at::Tensor> tensors{values};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  options.asyncOp = false;
  agreement_->allreduce(tensors, options)->wait();
  return values;
}

Communicators::Slot& Communicators::find(std::vector<Slot>& slots) {
  if (!slots.empty()) {
    // After agree(), so that what other members sent in these groups has arrived.
    const auto count = static_cast<std::int64_t>(slots.size());
    auto used = at::zeros({count}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i) used[i] = in_use(slots[static_cast<std::size_t>(i)]) ? 1 : 0;
    used = largest(used);
    for (std::int64_t i = 0; i < count; ++i)
      if (used[i].item<std::int64_t>() == 0) return slots[static_cast<std::size_t>(i)];
  }
  return slots.emplace_back();
}

bool Communicators::in_use(const Slot& slot) {
  if (slot.spoiled) return true;
  if (slot.comm == MPI_COMM_NULL) return false;
  if (!slot.user.expired()) return true;
  int unreceived = 0;
  const int code = engine_->exclusively(
      [&] { return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, slot.comm, &unreceived, MPI_STATUS_IGNORE); });
  return code != MPI_SUCCESS || unreceived != 0;
}

/// All members are here by the agreement and call nothing else of MPI: these blocking calls cannot wait for long.
MPI_Comm Communicators::create(const std::vector<int>& ranks, const std::string& axis) {
  MPI_Comm comm = MPI_COMM_NULL;
  engine_->exclusively([&] {
    MPI_Group everyone = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    MPI_Comm_group(world_.comm, &everyone);
    MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &members);
    const int code = MPI_Comm_create_group(world_.comm, members, 0, &comm);
    MPI_Group_free(&members);
    MPI_Group_free(&everyone);
    if (code != MPI_SUCCESS) throw CommError(fmt::format("no communicator for group {}: MPI error {}", axis, code));
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  });
  return comm;
}

}  // namespace trireme::comm::mpi
