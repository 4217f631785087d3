// What the commands that take weights share: eval, predict and generate.
#pragma once

#include <string>

#include "apps/command_line.h"
#include "core/checkpoint/train_state.h"
#include "core/config/table.h"
#include "core/setup/run_config.h"

namespace trireme::apps {

/// Verifies what an evaluation reads of a checkpoint: not its optimizer's files. @throws CheckpointError
checkpoint::TrainRecord open_checkpoint(const std::string& folder, checkpoint::Verify how);

/// Removes the layout of the training, which was for its ranks; weights do not depend on it.
void drop_layout(config::Table& root);

/// The configuration that belongs to the weights, for a command that runs in one process: without the layout.
/// @throws ConfigError
train::RunConfig single_process_config(const WeightsArgument& command);

}  // namespace trireme::apps
