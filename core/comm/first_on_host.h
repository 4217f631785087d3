// Runs work on the first rank of each host before the others, as for downloading or preparing data that they then find.
#pragma once

#include <functional>

#include "core/comm/world.h"

namespace trireme::comm {

/// Calls body() on the first rank of each host (local_rank 0); when it has returned on all hosts, calls it on the other
/// ranks. body() itself must not be collective. The first ranks must finish within the world's timeout. `name`: of the
/// function that the program called, for errors. Collective.
/// @throws what body() throws; CommError on the other ranks when it threw on the first rank of a host, without calling
/// it there
void first_on_host(const World& world, const std::function<void()>& body, const char* name = "first_on_host");
/// The same with rank 0 as the only first rank, for ranks that share a file system over all hosts. Collective.
void first_on_rank_0(const World& world, const std::function<void()>& body, const char* name = "first_on_rank_0");

}  // namespace trireme::comm
