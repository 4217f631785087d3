// Clocks of ranks, side by side: each machine's steady clock begins at its own start.
#pragma once

#include "core/comm/world.h"

namespace trireme::comm {

/// What this rank adds to its steady clock's seconds (trace::now()) to have rank 0's. As exact as half the fastest of
/// several messages there and back. Collective.
double clock_offset(World& world);

}  // namespace trireme::comm
