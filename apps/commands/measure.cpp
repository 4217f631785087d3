// The command that `trireme bench` starts for each layout and round.
#include <nlohmann/json.hpp>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/layouts.h"
#include "apps/worker/ranks.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_text.h"
#include "core/plan/calibration.h"
#include "core/setup/run_setup.h"
#include "core/train/report/measurement.h"

namespace trireme::apps {

namespace {

int measure_this_machine(const MeasureCommand& command) {
  return run_on_ranks(
      [&](const LaunchInfo& info) {
        const train::RunConfig config;
        tune_process(config, info);
        return world_options(config);
      },
      [&](comm::World& world) {
        const auto machine = plan::measure_machine(world, command.seconds);
        if (world.rank() == 0) write_file(command.into, machine.toml());
      });
}

}  // namespace

int run(const MeasureCommand& command) {
  if (command.config.empty()) return measure_this_machine(command);
  return run_on_training(
      [&] {
        return command.layout.empty() ? load_config(command.config, command.set)
                                      : load_with_layout(command.config, command.set, parse_layout(command.layout));
      },
      [&](comm::World& world, train::RunSetup setup) {
        if (command.profile && !world.device().is_cpu())
          throw ConfigError("--profile measures operators of CPU ranks, but these ranks use GPUs; remove it");
        const auto found =
            train::measure_steps(std::move(setup), world, {.seconds = command.seconds, .profile = command.profile});
        if (world.rank() == 0) write_file(command.into, json_text(found));
      });
}

}  // namespace trireme::apps
