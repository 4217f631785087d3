// trireme tune
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "apps/worker/ranks.h"
#include "core/base/json_text.h"
#include "core/base/log.h"
#include "core/plan/auto_layout.h"
#include "core/setup/run_setup.h"
#include "core/train/run_tuning.h"
#include "core/train/stop.h"

namespace trireme::apps {
namespace {

std::string shown(const tune::Tuning& tuning) {
  std::string out;
  const auto add = [&out](const std::string& line) { out += line + "\n"; };
  if (!tuning.candidates.empty()) add(tuning.table());
  for (const auto& note : tuning.notes) add(note);
  add(fmt::format("best: {}; tuned in {:.1f} s", tuning.line(), tuning.seconds));
  return out;
}

}  // namespace

int run(const TuneCommand& command) {
  int stopped = 0;
  std::optional<train::RunConfig> config;
  std::optional<train::RunSetup> setup;
  const auto prepare = [&](const LaunchInfo& info) {
    setup = train::prepare_training(*std::move(config), info, Log(info.rank));
  };
  const int failed = run_on_ranks(
      [&](const LaunchInfo& info) {
        auto set = command.set;
        set.insert(set.end(), {"optimize.tune=\"always\"", "optimize.choices=[]"});
        config = load_config(command.config, set);
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
        check_same_settings(world, "tune", *setup);
        const auto tuning = train::tune_alone(std::move(*setup), world);
        if (tuning.stopped)
          stopped = 128 + std::max(1, train::StopSignals::received());
        else if (world.rank() == 0)
          put(command.json ? json_text(tuning.json(), 2) + "\n" : shown(tuning));
      });
  return failed != 0 ? failed : stopped;
}

}  // namespace trireme::apps
