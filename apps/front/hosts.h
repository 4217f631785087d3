// The hosts of `trireme launch`: how they are written, which ranks each one gets, and which one is this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/rank_variables.h"

namespace trireme::apps {

struct Host {
  std::string name;  ///< as the user wrote it: a host name, an address or a name of the remote shell's own
  int slots = 1;     ///< the most ranks it may have
};

/// "a:2,b:2" or "a,b"; a host without a number has one slot. Slots of a host that occurs again add up. An IPv6 address
/// stands in brackets. @throws ConfigError that says how it is written
std::vector<Host> parse_hosts(const std::string& text);

/// A file with a line "HOST", "HOST:2" or "HOST slots=2" for each host; the rest of a line after # is a comment.
/// @throws ConfigError
std::vector<Host> read_hostfile(const std::string& path);

/// The ranks of one host: `count` of them from `first` on.
struct HostShare {
  std::string name;
  int first = 0, count = 0;
  bool here = false;  ///< this machine
};

/// Fills the hosts in order; a host that gets no rank is left out. No hosts: all ranks are on this machine. Only the
/// first host that is this machine is `here`. @throws ConfigError when the ranks do not fit the slots
std::vector<HostShare> share_ranks(int ranks, const std::vector<Host>& hosts);

/// The name without the user's, as in "user@node1", which is for the remote shell alone.
std::string address_name(const std::string& host);

/// Where rank 0 serves the store: MASTER_ADDR, or an address of the first host that the others find. The port is
/// MASTER_PORT, and 0 where any will do. @throws ConfigError
comm::StoreAddress store_address(const std::vector<HostShare>& hosts);

}  // namespace trireme::apps
