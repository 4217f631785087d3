// trireme eval
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "apps/worker/ranks.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/comm/mesh.h"
#include "core/setup/plugin_sections.h"
#include "core/setup/run_setup.h"
#include "core/train/run.h"
#include "trireme.h"

namespace trireme::apps {
namespace {

bool sets(const std::vector<std::string>& set, const char* section) {
  return std::any_of(set.begin(), set.end(), [&](const auto& each) { return each.starts_with(section); });
}

/// Whether the layout can run on `ranks` ranks. @throws ConfigError for errors that do not depend on that number
bool fits(train::RunConfig config, int ranks) {
  const auto plugin = train::configured_plugin(config);
  try {
    plugin->check(train::settings_of(config, *plugin, ranks));
    comm::Mesh::validate(plugin->axes(ranks), ranks);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// The configuration for the evaluation. A run's own layout was for the ranks that it trained on. Weights do not depend
/// on the layout, so with other ranks, or with a layout from --set, another layout is used.
train::RunConfig eval_config(const EvalCommand& command, int ranks, const Log& log) {
  if (!command.own_config) return load_config(command.config, command.set);
  auto root = config::parse_file(command.config);
  const bool own_layout = !sets(command.set, "parallel.");
  if (!own_layout) drop_layout(root);
  if (const auto parallel = root.tables.find("parallel"); parallel != root.tables.end())
    parallel->second.entries.erase("dp");  // it only checks the number of training ranks
  override_resolved(root, command.set);
  auto config = train::from_table(root, builtin_kinds());
  // Plugin settings from the user must be used or rejected.
  if (!own_layout || sets(command.set, "plugin.") || fits(config, ranks)) return config;
  log.note("layout   the run's layout ({}) does not fit {}; evaluating with data parallelism", config.parallel.plugin,
           text::quantity(ranks, "rank"));
  drop_layout(root);
  return train::from_table(std::move(root), builtin_kinds());
}

/// Rank 0 verifies every byte. Returns a line that says which weights are evaluated; "" on other ranks.
std::string check_checkpoint(const EvalCommand& command, int rank) {
  const auto stored =
      open_checkpoint(command.weights, rank == 0 ? checkpoint::Verify::content : checkpoint::Verify::sizes);
  if (rank != 0) return "";
  const auto& at = stored.progress;
  return fmt::format("weights   {}: epoch {}, after {}\n", command.weights, at.epoch_number(),
                     text::quantity(at.global_step, "step"));
}

void check_report(const EvalCommand& command, const train::RunSetup& setup) {
  if (command.report && !setup.task.made->report())
    throw ConfigError(fmt::format("--report: the task \"{}\" has no classes to report on; remove the option",
                                  setup.task.kind.name()));
}

}  // namespace

int run(const EvalCommand& command) {
  std::optional<train::RunSetup> setup;
  return run_on_ranks(
      [&](const LaunchInfo& info) {
        const auto weights = command.is_checkpoint ? check_checkpoint(command, info.rank) : "";
        auto config = eval_config(command, info.size, Log(info.rank));
        const auto options = world_options(config);
        tune_process(config, info);
        setup = train::prepare_evaluation(std::move(config), info, command.weights, Log(info.rank));
        check_report(command, *setup);
        put(weights);
        return options;
      },
      [&](comm::World& world) {
        check_same_settings(world, "eval", *setup);
        train::run_evaluation(std::move(*setup), world, {.columns = terminal_columns(STDOUT_FILENO)}, command.report);
      });
}

}  // namespace trireme::apps
