// The command that `trireme bench` starts for each layout and round.
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/layouts.h"
#include "apps/worker/ranks.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_text.h"
#include "core/base/log.h"
#include "core/plan/auto_layout.h"
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
  std::optional<train::RunConfig> config;
  std::optional<train::RunSetup> setup;
  const auto prepare = [&](const LaunchInfo& info) {
    setup = train::prepare_training(*std::move(config), info, Log(info.rank));
  };
  return run_on_ranks(
      [&](const LaunchInfo& info) {
        config = command.layout.empty() ? load_config(command.config, command.set)
                                        : load_with_layout(command.config, command.set, parse_layout(command.layout));
        const auto options = world_options(*config);
        tune_process(*config, info);
        if (!plan::is_auto(*config)) prepare(info);
        return options;
      },
      [&](comm::World& world) {
        if (!setup) {
          config = plan::with_auto_layout(*config, world, Log(world.rank())).config;
          prepare(world.info());
        }
        if (command.profile && !world.device().is_cpu())
          throw ConfigError("--profile measures operators of CPU ranks, but these ranks use GPUs; remove it");
        const auto found =
            train::measure_steps(std::move(*setup), world, {.seconds = command.seconds, .profile = command.profile});
        if (world.rank() == 0) write_file(command.into, json_text(found));
      });
}

}  // namespace trireme::apps
