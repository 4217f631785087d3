// Shared by the schedules whose backward passes are not split.
#pragma once

#include <vector>

#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

/// The actions of one rank: `warm_up` forwards, then one forward and one backward alternately, then the remaining
/// backwards.
std::vector<Action> alternate(const std::vector<Action>& forwards, const std::vector<Action>& backwards, int warm_up);

/// A schedule with one stage per rank: forwards and backwards in the order of the microbatches, with each rank's
/// warm-up.
Schedule alternate(const std::string& name, int ranks, int microbatches, int (*warm_up)(const Schedule&, int rank));

}  // namespace trireme::pipeline
