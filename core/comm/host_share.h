// Shares a text that one rank of a host computes with the other ranks of the host, before any transport exists.
// Example: a listing of a million files, for which a file system should be asked only once.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/comm/world.h"

namespace trireme::comm {

/// Returns the result of make() on the host's first rank (local_rank 0) on all ranks of the host. The first rank serves
/// it in the background through a Unix socket in the abstract namespace, which only processes of the same user may use,
/// until all others have it, or for a minute. A rank that does not get it (the first rank's make() threw, or it cannot
/// be reached within `patience`) calls make() itself.
/// `name` distinguishes texts of one job; all ranks ask for the texts of one name in the same order. info.job == "":
/// each rank calls make() itself.
std::string share_on_host(const LaunchInfo& info, const std::string& name, const std::function<std::string()>& make,
                          std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace trireme::comm
