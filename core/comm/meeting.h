// How ranks find each other before a transport exists, in key-value stores, and agree through them.
// Private to core/comm.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/comm/world.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace trireme::comm {

struct Address {
  std::string host;
  int port = 0;
};

/// The address of rank 0, to be called on rank 0: MASTER_ADDR and MASTER_PORT if they are set; else this machine's name
/// (the loopback address when all ranks are on it) and port 0, which means any free port.
/// @throws ConfigError when MASTER_PORT is not a port number.
Address address_of_rank_0(const LaunchInfo& info);

/// The store at MASTER_ADDR and MASTER_PORT, which torchrun and our own launchers set. Torchrun's agent may serve it
/// (TORCHELASTIC_USE_AGENT_STORE); else rank 0 does, on the listening socket TRIREME_STORE_FD if its launcher passed
/// one, so that no other process can take the port. Each call of a process returns keys of their own, so all ranks make
/// the same calls.
/// @throws ConfigError when the variables are missing or wrong, CommError when rank 0 cannot be reached in time.
c10::intrusive_ptr<c10d::Store> launcher_store(const LaunchInfo& info, std::chrono::milliseconds timeout);

/// A store that rank 0 serves. `share_address` returns rank 0's address on all ranks. @throws CommError.
c10::intrusive_ptr<c10d::Store> shared_store(const LaunchInfo& info, std::chrono::milliseconds timeout,
                                             const std::function<Address(const Address&)>& share_address);

/// Computes rank 0's answer from the texts of all ranks, in rank order.
using Answer = std::function<std::string(const std::vector<std::string>&)>;

/// Each rank writes its text `mine` and reads the answer; only rank 0 reads all texts. Four requests per rank, and on
/// rank 0 one more for each rank and one for all of them. After the time `silence`, rank 0 prints which ranks it waits
/// for. It returns when all ranks have read the answer, since it may serve the store.
/// `key`: a prefix that no other agreement uses.
/// @throws CommError, which names the missing ranks on rank 0, when the store's time limit passes.
std::string decide_by_store(c10d::Store& store, int rank, int size, const std::string& key, const std::string& mine,
                            const Answer& answer, std::chrono::milliseconds silence = std::chrono::seconds(10));

}  // namespace trireme::comm
