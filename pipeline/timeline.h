// How a pipeline's ranks spent a step, drawn, with the schedule's own bubble beside the measured one.
#pragma once

#include <string>
#include <vector>

#include "core/comm/group.h"
#include "pipeline/executor.h"

namespace trireme::pipeline {

/// "forward of microbatch 3, stage 1"
std::string describe(const Event& event);

/// `events`: this rank's, of one step, in order. Collective over the pipeline. On its rank 0 the text, "" when some
/// rank has no events; "" elsewhere. Clocks are those of one machine.
std::string picture_of(const Plan& plan, const std::vector<Event>& events, const comm::Group& line, c10::Device device,
                       int columns);

}  // namespace trireme::pipeline
