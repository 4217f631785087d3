// What the schedules of whole backwards have in common.
#pragma once

#include <vector>

#include "pipeline/schedule/schedule.h"

namespace trireme::pipeline {

/// One rank's list: `warm_up` forwards, then one forward and one backward in turns, then the backwards that are left.
std::vector<Action> alternate(const std::vector<Action>& forwards, const std::vector<Action>& backwards, int warm_up);

/// One stage a rank: forwards and backwards in the order of the microbatches, with the warm-up that each rank has.
Schedule alternate(const std::string& name, int ranks, int microbatches, int (*warm_up)(const Schedule&, int rank));

}  // namespace trireme::pipeline
