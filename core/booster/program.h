// The frame of a program of one's own on ranks: from main() to a world and back to an exit code.
#pragma once

#include <functional>

#include "core/comm/world.h"

namespace trireme {

/// Launches the world, runs `body` on this rank and returns what it returns. An exception of any kind becomes one line
/// on standard error, "NAME: what", and its exit code (docs/errors.md; 1 for the program's own), and ends the other
/// ranks too: one that only this rank meets would leave them waiting. Where all meet the same, rank 0 says it.
int run_program(const char* name, const std::function<int(comm::World&)>& body, const comm::WorldOptions& options = {});

}  // namespace trireme
