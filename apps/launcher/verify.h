// trireme verify: runs the first steps of one configuration in several layouts and compares them.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Runs the layouts one after the other, each with its own ranks, and prints a row for each. Returns 0 if all equal the
/// first one, 1 if one differs or could not run, and 128 + n after signal n. @throws ConfigError before any of them
/// starts.
int verify(const VerifyCommand& command);

}  // namespace trireme::apps
