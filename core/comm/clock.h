// Synchronization of the ranks' clocks: the steady clock of each machine starts at a different time.
#pragma once

#include "core/comm/world.h"

namespace trireme::comm {

/// The offset to add to this rank's steady clock (trace::now(), seconds) to get rank 0's. Accurate to half the fastest
/// of several round trips. Collective.
double clock_offset(World& world);

}  // namespace trireme::comm
