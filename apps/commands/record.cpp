// The commands that `trireme verify` starts: one check of all layouts, then for each layout a record of the first steps
// of a run and its distance from another layout's record.
#include "core/train/report/record.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/layouts.h"
#include "apps/worker/ranks.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/log.h"
#include "core/setup/run_setup.h"

namespace trireme::apps {

int run(const CheckCommand& command) {
  if (command.layouts.empty()) {
    check_for_ranks(load_config(command.config, command.set), command.ranks);
    return 0;
  }
  for (const auto& layout : parse_layouts(command.layouts)) {
    try {
      check_for_ranks(load_with_layout(command.config, command.set, layout), layout.ranks());
    } catch (const ConfigError& error) {
      blame(layout, command.set, error);
    }
  }
  return 0;
}

int run(const RecordCommand& command) {
  std::optional<train::RunSetup> setup;
  return run_on_ranks(
      [&](const LaunchInfo& info) {
        auto config = load_with_layout(command.config, command.set, parse_layout(command.layout));
        const auto options = world_options(config);
        tune_process(config, info);
        setup = train::prepare_training(std::move(config), info, Log(info.rank));
        return options;
      },
      [&](comm::World& world) {
        const bool coarse = setup->config.train.precision != "fp64";
        train::record_steps(std::move(*setup), world, command.steps, command.into);
        if (world.rank() != 0) return;
        const auto off = train::compare_records(command.into, command.against, coarse);
        const nlohmann::json found{{"loss", off.loss},
                                   {"gradient", off.gradient.value},
                                   {"gradient_of", off.gradient.of},
                                   {"weight", off.weight.value},
                                   {"weight_of", off.weight.of}};
        write_file(command.into + "/difference.json", found.dump());
      });
}

}  // namespace trireme::apps
