#include "core/plan/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/comm/devices.h"
#include "core/nn/batch_statistics.h"

namespace trireme::plan {

Machine machine_of(const train::RunConfig& config) {
  if (!config.run.machine.empty()) return Machine::load(config.run.machine);
  const bool cpu = config.run.device == "cpu" || comm::cuda_device_count() == 0;
  const auto gpu = cpu ? "" : comm::cuda_device_name(0);
  if (auto known = Machine::estimated_for(gpu)) return *std::move(known);
  throw ConfigError(fmt::format(
      "no rates of a {} are known; measure it with trireme bench --machine FILE, and name the file in run.machine",
      gpu));
}

LaunchInfo planned_launch(const Machine& machine, std::int64_t ranks) {
  LaunchInfo info{.launcher = Launcher::launch, .rank = 0, .size = static_cast<int>(ranks)};
  info.local_size = static_cast<int>(std::min(ranks, machine.ranks_per_host));
  return info;
}

train::RunSetup prepare_to_plan(train::RunConfig config, const Machine& machine, const LaunchInfo& launch,
                                const train::RunSetup* opened) {
  config.run.device = "cpu";  // this process has no more, and must not be asked for TF32
  const auto precision = config.train.precision;
  if (precision == "tf32" && machine.type() == c10::kCUDA) config.train.precision = "fp32";
  auto setup = train::prepare_training(std::move(config), launch, Log(/*rank=*/1), opened);
  setup.config.train.precision = precision;
  return setup;
}

train::RunConfig with_root(const train::RunConfig& config, config::Table root) {
  // They have added their kinds.
  if (const auto run = root.tables.find("run"); run != root.tables.end()) run->second.entries.erase("extensions");
  auto out = train::from_table(std::move(root), config.kinds);
  out.run.extensions = config.run.extensions;
  return out;
}

train::RunConfig with_settings(const train::RunConfig& config, const Settings& settings) {
  auto root = config.root;
  if (settings.contains("parallel.dp") || settings.contains("parallel.plugin")) {
    root.tables.erase("parallel");
    root.tables.erase("plugin");
    config::apply_override(root, "parallel.plugin=\"hybrid_parallel\"");
  }
  for (const auto& [key, value] : settings) config::apply_override(root, key + "=" + value);
  return with_root(config, std::move(root));
}

Settings set_in_parallel(const config::Table& root) {
  Settings out;
  for (const auto& [key, entry] : config::section_of(root, "parallel").entries)
    if (key != "plugin") out["parallel." + key] = config::to_toml(entry.value);
  return out;
}

SearchResult search_layouts(const train::RunConfig& config, const Machine& machine, SearchOptions options) {
  const auto launch = planned_launch(machine, options.ranks);
  const auto plain = options.keeps_layout ? prepare_to_plan(config, machine, launch)
                                          : prepare_to_plan(with_settings(config, {{"parallel.dp", "1"}}), machine,
                                                            planned_launch(machine, 1));
  options.global_batch = plain.batch.global;
  options.recomputes = config.train.recompute;
  options.sets_micro_batch = config.root.find("train", "micro_batch") != nullptr;
  options.keeps_microbatches = nn::has_batch_statistics(*plain.model.source().model);
  const double sample_seconds = machine.cores > 0 ? seconds_of_sample(*plain.data.train) : 0;
  return search(options, [&](const Settings& settings) {
    try {
      return forecast(prepare_to_plan(with_settings(config, settings), machine, launch, &plain), machine,
                      sample_seconds);
    } catch (const std::exception&) {
      Forecast none;
      none.problem = verdict_on(std::current_exception()).message;
      return none;
    }
  });
}

}  // namespace trireme::plan
