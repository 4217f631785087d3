// The rates of a CPU, from steps of small networks: operators take longer between others, which leave their own tensors
// in the caches, than when they are repeated alone.
#pragma once

#include "core/comm/world.h"
#include "core/plan/machine.h"

namespace trireme::plan {

struct StepRates {
  ComputeRates compute{};
  double jitter_us = 0;  ///< how far apart the ranks end their steps (LinkRates)
};

/// On all ranks at the same time; takes about `seconds`. Collective.
StepRates rates_in_steps(comm::World& world, double seconds);
/// How many times as fast a rank computes while the others wait, on rank 0. Collective.
double speed_alone(comm::World& world);

}  // namespace trireme::plan
