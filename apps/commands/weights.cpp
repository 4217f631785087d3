#include "apps/commands/weights.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace trireme::apps {

checkpoint::Checkpoint open_checkpoint(const std::string& folder, checkpoint::Verify how) {
  try {
    return checkpoint::Checkpoint(folder, how);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}; name another checkpoint of the run", error.what()));
  }
}

void drop_layout(config::Table& root) {
  root.tables.erase("parallel");
  root.tables.erase("plugin");
}

}  // namespace trireme::apps
