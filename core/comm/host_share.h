// What one rank of a host finds out, shared with the host's other ranks before any transport is up: a listing of a
// million files, say, that a file system should be asked for once.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/comm/world.h"

namespace trireme::comm {

/// make() of the host's first rank (local_rank 0), on each of the host's ranks. The first rank serves it in the
/// background, through a Unix socket in the abstract namespace that only processes of the same user may use; it holds
/// the text until the others have it, a minute at most. A rank that gets nothing (the first rank's make() threw, or it
/// cannot be reached within `patience`) makes its own.
/// `name` tells different things of one job apart. info.job == "": each rank makes its own.
std::string share_on_host(const LaunchInfo& info, const std::string& name, const std::function<std::string()>& make,
                          std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace trireme::comm
