#include "apps/commands/weights.h"

#include <fmt/format.h>

#include "apps/commands/load_config.h"
#include "apps/config_file.h"
#include "core/base/error.h"
#include "trireme.h"

namespace trireme::apps {

checkpoint::TrainRecord open_checkpoint(const std::string& folder, checkpoint::Verify how) {
  try {
    return checkpoint::verify_checkpoint_weights(folder, how);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}; name another checkpoint of the run", error.what()));
  }
}

void drop_layout(config::Table& root) {
  root.tables.erase("parallel");
  root.tables.erase("plugin");
}

train::RunConfig single_process_config(const WeightsArgument& command) {
  auto root = read_config(command.config);
  drop_layout(root);
  if (command.own_config)
    override_resolved(root, command.set);
  else
    for (const auto& assignment : command.set) config::apply_override(root, assignment);
  return train::from_table(std::move(root), builtin_kinds());
}

}  // namespace trireme::apps
