// What the commands that take weights share: eval and predict.
#pragma once

#include <string>

#include "core/checkpoint/train_state.h"
#include "core/config/table.h"

namespace trireme::apps {

/// Verifies and opens a checkpoint. @throws CheckpointError
checkpoint::Checkpoint open_checkpoint(const std::string& folder, checkpoint::Verify how);

/// Removes the layout of the training, which was for its ranks; weights do not depend on it.
void drop_layout(config::Table& root);

}  // namespace trireme::apps
