// A second wire and a second transport for tests, of the kind that the world uses.
#pragma once

#include <memory>

#include "core/comm/engine/wire.h"
#include "core/comm/transport.h"

namespace trireme::tests {

/// Whether the world's transport is Open MPI.
bool over_mpi();

/// A wire of its own, over all ranks. Collective.
struct OwnWire {
  /// Sets the channel's context to that of all ranks.
  explicit OwnWire(comm::engine::Channel& channel);
  ~OwnWire();
  OwnWire(const OwnWire&) = delete;
  OwnWire& operator=(const OwnWire&) = delete;
  std::shared_ptr<comm::engine::Wire> wire;

 private:
  std::uint64_t context_ = 0;
};

/// A transport of its own, over all ranks. Collective.
std::unique_ptr<comm::CpuTransport> own_transport();

}  // namespace trireme::tests
