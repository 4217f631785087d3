// Loads the configuration of a command, with everything that it can select.
#pragma once

#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/layouts.h"
#include "core/checkpoint/train_state.h"
#include "core/setup/run_config.h"

namespace trireme::apps {

/// What Trireme has, and what the file's extensions add. @throws ConfigError
train::Kinds kinds_for(const config::Table& root);

/// Reads and checks the file with the overrides. `runs_commands`: whether the data may be fetched by commands that the
/// file holds (datasets::all_datasets()). @throws ConfigError
train::RunConfig load_config(const std::string& path, const std::vector<std::string>& set, bool runs_commands = true);

/// The same with `layout` in place of its [parallel] and [plugin.*], without keys that apply to one precision.
/// @throws ConfigError
train::RunConfig load_with_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout,
                                  bool runs_commands = true);

/// Applies the overrides to a file that a run wrote, which holds every key. When an override changes a key on which
/// others depend, those that do not apply to its new value are dropped: data.images after data.name=image_folder.
/// @throws ConfigError
void override_resolved(config::Table& root, const std::vector<std::string>& set);

/// Removes the layout of the training, which was for its ranks; weights do not depend on it.
void drop_layout(config::Table& root);

/// The configuration that belongs to the weights, for a command that runs in one process: without the layout.
/// @throws ConfigError
train::RunConfig single_process_config(const WeightsArgument& command);

/// Verifies what an evaluation reads of a checkpoint: not its optimizer's files. @throws CheckpointError
checkpoint::TrainRecord open_checkpoint(const std::string& folder, checkpoint::Verify how);

}  // namespace trireme::apps
