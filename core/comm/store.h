// The key-value stores in which ranks meet before a transport exists. Private to core/comm.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>

#include "core/comm/meeting.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm {

/// The store at MASTER_ADDR and MASTER_PORT, which torchrun and our own launchers set. Torchrun's agent may serve it
/// (TORCHELASTIC_USE_AGENT_STORE); else rank 0 does, on the listening socket TRIREME_STORE_FD if its launcher passed
/// one, so that no other process can take the port. Each call of a process returns keys of their own, so all ranks make
/// the same calls.
/// @throws ConfigError when the variables are missing or wrong, CommError when rank 0 cannot be reached in time.
c10::intrusive_ptr<c10d::Store> launcher_store(const LaunchInfo& info, std::chrono::milliseconds timeout);

/// A store that rank 0 serves. `share_address` returns rank 0's address on all ranks. @throws CommError.
c10::intrusive_ptr<c10d::Store> shared_store(const LaunchInfo& info, std::chrono::milliseconds timeout,
                                             const std::function<Address(const Address&)>& share_address);

}  // namespace trireme::comm
