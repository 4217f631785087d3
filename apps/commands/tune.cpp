// trireme tune
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "core/base/json_text.h"
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
  const int failed = run_on_training(
      [&] {
        auto set = command.set;
        set.insert(set.end(), {"optimize.tune=\"always\"", "optimize.choices=[]"});
        return load_config(command.config, set);
      },
      [&](comm::World& world, train::RunSetup setup) {
        check_same_settings(world, "tune", setup);
        const auto tuning = train::tune_alone(std::move(setup), world);
        if (tuning.stopped)
          stopped = 128 + std::max(1, train::StopSignals::received());
        else if (world.rank() == 0)
          put(command.json ? json_text(tuning.json(), 2) + "\n" : shown(tuning));
      });
  return failed != 0 ? failed : stopped;
}

}  // namespace trireme::apps
