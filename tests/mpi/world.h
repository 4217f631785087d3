// The world of a multi-rank test program.
#pragma once

#include "core/comm/world.h"

namespace trireme::tests {
comm::World& world();
}  // namespace trireme::tests
