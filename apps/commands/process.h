// What the commands that run on ranks tell their process and their world.
#pragma once

#include "core/comm/world.h"
#include "core/config/run_config.h"

namespace trireme::apps {

comm::WorldOptions world_options(const config::RunConfig& config);
/// Compute threads of this rank, a limit on its tensors, and an allocator that keeps the activations' memory from step
/// to step.
void tune_process(const config::RunConfig& config, const comm::LaunchInfo& info);

}  // namespace trireme::apps
