// Timeline: a measured step of a pipeline as a picture, with the measured bubble and that of the schedule.
#pragma once

#include <string>
#include <vector>

#include "core/comm/group.h"
#include "pipeline/executor.h"

namespace trireme::pipeline {

/// "forward of microbatch 3, stage 1"
std::string describe(const Event& event);

/// `events`: those of this rank in one step, in order. Collective over the pipeline. Returns the text on its rank 0, or
/// "" when some rank has no events; "" on the other ranks. The clocks must be those of one machine.
std::string picture_of(const Plan& plan, const std::vector<Event>& events, const comm::Group& line, int columns);

}  // namespace trireme::pipeline
