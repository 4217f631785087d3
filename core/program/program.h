// Runs a user's own program: from main() to a world and back to an exit code.
#pragma once

#include <functional>
#include <limits>
#include <string>

#include "core/comm/world.h"

namespace trireme {

/// Launches the world, runs `body` on this rank and returns its result. An exception of any kind becomes one line on
/// standard error, "NAME: message", and an exit code (docs/errors.md; 1 for the program's own exceptions). It also ends
/// the other ranks, which would otherwise wait. If all ranks have the same error, rank 0 reports it.
int run_program(const char* name, const std::function<int(comm::World&)>& body, const comm::WorldOptions& options = {});

/// The same without a world, for what comes before it: a program that calls spawn(), or checks its arguments. `body`
/// may end with the call above.
int run_program(const char* name, const std::function<int()>& body);

/// The number that the program's argument `name` has. @throws ConfigError when it is not a whole number of this range
int integer_argument(const std::string& name, const std::string& text, int least = 1,
                     int most = std::numeric_limits<int>::max());

}  // namespace trireme
