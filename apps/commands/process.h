// Process and world settings of the commands that run on ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/comm/world.h"
#include "core/setup/run_setup.h"

namespace trireme::apps {

comm::WorldOptions world_options(const train::RunConfig& config);
/// Sets this rank's number of compute threads, the limit on its tensors, and allocator options that keep the memory of
/// activations from step to step.
void tune_process(const train::RunConfig& config, const LaunchInfo& info);

/// Runs a command on every rank with a training that each prepares: before the ranks connect, or after it where the
/// plan has still to choose the layout. Returns the exit code.
int run_on_training(const std::function<train::RunConfig()>& load,
                    const std::function<void(comm::World&, train::RunSetup)>& body);

/// When this process began, Unix seconds, to a hundredth of a second; now, where the system does not tell.
double process_begin();

/// Prepares a training of `ranks` ranks silently in this one process, for a command that asks whether it could start.
/// @throws ConfigError, DataError, CheckpointError
train::RunSetup check_for_ranks(train::RunConfig config, std::int64_t ranks);

/// Checks that all ranks were started with the same command and settings. Paths and local resources may differ by host,
/// but not the data and the plugin that they lead to. Collective. @throws ConfigError on every rank, naming the first
/// difference
void check_same_settings(comm::World& world, const std::string& command, const train::RunSetup& setup);
/// The same where the plan has still to choose the layout.
void check_same_settings(comm::World& world, const std::string& command, const train::RunConfig& unsearched);

}  // namespace trireme::apps
