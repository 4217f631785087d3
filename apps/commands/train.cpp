// trireme train
#include <unistd.h>

#include <optional>

#include "apps/commands/commands.h"
#include "apps/commands/process.h"
#include "apps/config_file.h"
#include "apps/report.h"
#include "apps/worker/ranks.h"
#include "core/base/log.h"
#include "core/train/prepare.h"
#include "core/train/run_folder.h"
#include "core/train/session.h"
#include "models/registry.h"

namespace trireme::apps {
int run(const TrainCommand& command) {
  if (checks_for(command.ranks)) {
    check_for_ranks(load_config(command.config, command.set), *command.ranks, "");
    return 0;
  }
  std::optional<train::Prepared> prepared;
  return run_on_ranks(
      [&](const comm::LaunchInfo& info) {
        auto config = load_config(command.config, command.set);
        const auto options = world_options(config);
        tune_process(config, info);
        prepared = train::prepare(std::move(config), info, models::all_models(), "", Log(info.rank));
        return options;
      },
      [&](comm::World& world) {
        if (prepared->config.run.memory_mb > 0 && !world.device().is_cpu())
          config::fail(prepared->config.root.table("run"), "memory_mb",
                       "limits CPU ranks, and these ranks have GPUs; remove it");
        const auto folder = train::open_run(*prepared);
        train::run_training(std::move(*prepared), world, *folder, {.columns = terminal_columns(STDOUT_FILENO)},
                            command.timeline);
      });
}

}  // namespace trireme::apps
