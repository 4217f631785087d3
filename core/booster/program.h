// Runs a user's own program on ranks: from main() to a world and back to an exit code.
#pragma once

#include <functional>

#include "core/comm/world.h"

namespace trireme {

/// Launches the world, runs `body` on this rank and returns its result. An exception of any kind becomes one line on
/// standard error, "NAME: message", and an exit code (docs/errors.md; 1 for the program's own exceptions). It also ends
/// the other ranks, which would otherwise wait. If all ranks have the same error, rank 0 reports it.
int run_program(const char* name, const std::function<int(comm::World&)>& body, const comm::WorldOptions& options = {});

}  // namespace trireme
