// trireme launch: starts ranks of any program on this machine.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Runs the program on all ranks and returns the exit code as Supervisor::run() does. @throws ConfigError before any
/// rank starts
int launch(const LaunchCommand& command);

}  // namespace trireme::apps
