// The Open MPI wire: a channel is a communicator, and a message an MPI message under its tag.
//
// MPI is called under the engine's lock (MPI_THREAD_SERIALIZED suffices; a lock in Trireme costs less than Open MPI's).
// Nothing here wakes a thread: Open MPI makes progress only when it is called.
#pragma once

#include <mpi.h>

#include "core/comm/engine/wire.h"

namespace trireme::comm::mpi {

/// The channel of a communicator.
engine::Channel channel_of(MPI_Comm comm);
/// The communicator of a channel.
MPI_Comm communicator(const engine::Channel& channel);

class MpiWire final : public engine::Wire {
 public:
  [[nodiscard]] const char* name() const override { return "mpi"; }
  [[nodiscard]] std::size_t longest_message() const override { return 1u << 30; }  // MPI counts are ints
  std::uint64_t open(const engine::Channel& world, const std::vector<int>& ranks, const std::string& axis,
                     std::uint64_t number) override;
  engine::Request send(const engine::Channel& channel, int tag, int peer, const std::byte* data,
                       std::size_t bytes) override;
  std::optional<engine::Matched> match(const engine::Channel& channel, int tag, int peer) override;
  engine::Request receive(const engine::Channel& channel, const engine::Matched& matched, std::byte* data) override;
  std::size_t test(std::span<engine::Request> requests, std::span<const int> peers) override;

 private:
  // Of the current call of test().
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace trireme::comm::mpi
