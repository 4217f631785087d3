// trireme bench: measures the steps of a configuration, in one layout or in several in turn, and of another program.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Measures each layout in rounds (A B, A B), each time with ranks of its own, and prints a table, or JSON. Nothing is
/// written to a run folder. Returns 0, or the exit code of one that could not run (the first ends it), and 128 + n
/// after signal n.
/// @throws ConfigError before any of them starts
int bench(const BenchCommand& command);

}  // namespace trireme::apps
