// Meeting: how ranks without a transport between them find each other, and agree through a key-value store.
// Private to core/comm.
#pragma once

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

/// Where rank 0 is to be reached, asked on rank 0: MASTER_ADDR and MASTER_PORT where they are set; else this machine's
/// name (the loopback address when all ranks are on it) and port 0, which is any that is free.
/// @throws ConfigError when MASTER_PORT is no port.
Address address_of_rank_0(const LaunchInfo& info);

/// Rank 0's answer to what each rank says, in rank order.
using Answer = std::function<std::string(const std::vector<std::string>&)>;

/// Each rank writes what it says and reads the answer; rank 0 alone reads what all say. Four requests a rank, and one
/// more for each rank on rank 0, which returns when all have the answer (it may serve the store).
/// `key`: a prefix that no other meeting has.
std::string decide_by_store(c10d::Store& store, int rank, int size, const std::string& key, const std::string& mine,
                            const Answer& answer);

}  // namespace trireme::comm
