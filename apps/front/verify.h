// trireme verify: the first steps of one file in several layouts, and how far they are apart.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Runs the layouts one after the other, each with its own ranks, and prints a row for each. Returns 0 when all equal
/// the first, 1 when one does not or could not run; 128 + n after signal n. @throws ConfigError before any starts.
int verify(const VerifyCommand& command);

}  // namespace trireme::apps
