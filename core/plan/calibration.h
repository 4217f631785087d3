// Calibration: measures the machine of a world (machine.h) with the operators and messages of training.
#pragma once

#include "core/comm/world.h"
#include "core/plan/machine.h"

namespace trireme::plan {

/// Every rank computes at the same time, as in training, so that they share the memory's bandwidth; rank 0's rates
/// count. Between hosts, a world of ranks of one host says nothing: [between] is then that of [inside]. Takes about
/// `seconds`. Collective. @throws Error
Machine measure_machine(comm::World& world, double seconds);

}  // namespace trireme::plan
