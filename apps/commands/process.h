// What the commands that run on ranks tell their process and their world.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/comm/world.h"
#include "core/config/run_config.h"
#include "core/train/prepare.h"

namespace trireme::apps {

comm::WorldOptions world_options(const config::RunConfig& config);
/// Compute threads of this rank, a limit on its tensors, and an allocator that keeps the activations' memory from step
/// to step.
void tune_process(const config::RunConfig& config, const comm::LaunchInfo& info);

/// Whether this process is to check a command with `--ranks N` for N ranks, and is none of them: see front/launch.h.
bool checks_for(const std::optional<std::int64_t>& ranks);
/// Prepares in one process, silently, what so many ranks would, and so refuses what they would before they connect.
/// `weights`: of an evaluation. @throws ConfigError, DataError, CheckpointError
train::Prepared check_for_ranks(config::RunConfig config, std::int64_t ranks, const std::string& weights);

}  // namespace trireme::apps
