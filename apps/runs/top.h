// trireme top: a run's numbers in a terminal, while it trains.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Shows the run once a second until it ends; once, where standard output is no terminal. @throws ConfigError when the
/// folder is no run, CheckpointError when it cannot be read
int top(const TopCommand& command);

}  // namespace trireme::apps
