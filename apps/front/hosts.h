// The hosts of `trireme launch`: how they are written, which ranks each one gets, and which one is this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

/// This machine's name, as messages have it.
std::string own_host_name();

/// The name without the user's, as in "user@node1", which is for the remote shell alone.
std::string address_name(const std::string& host);

/// Whether the name, or the address, is one that this machine finds.
bool has_address(const std::string& host);

/// An address of this machine that `other` can reach: the one from which packets to it leave. This machine's name if
/// `other` has no address here.
std::string own_address_towards(const std::string& other);

}  // namespace trireme::apps
