#include "core/plan/auto_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/comm/host_values.h"
#include "core/comm/mesh.h"
#include "core/config/table.h"
#include "core/plan/layout_search.h"
#include "core/plan/meta_kernels.h"
#include "core/resume/resume_point.h"
#include "core/setup/plugin_sections.h"

namespace trireme::plan {
namespace {

constexpr double kMostSeconds = 10;  ///< of a search

bool chooses_layout(const train::RunConfig& config) { return config.parallel.plugin == train::kAuto; }

/// The plugin and its axes: "torch_ddp dp 2".
std::string layout_of(train::RunConfig config, int ranks) {
  const auto plugin = train::configured_plugin(config);
  const auto axes = plugin->axes(ranks);
  comm::Mesh::validate(axes, ranks);
  std::string out = plugin->name();
  for (const auto& axis : axes) out += fmt::format(" {} {}", axis.kind.name, axis.size);
  return out;
}

/// Whether a run's layout is for so many ranks, and has what the user's file sets in [parallel].
bool matches(const Settings& layout, train::RunConfig as_stored, const config::Table& users, int ranks) {
  for (const auto& [key, value] : set_in_parallel(users)) {
    const auto option = train::short_keys().find(key.substr(std::string("parallel.").size()));
    const auto at = layout.find(option == train::short_keys().end() ? key : "plugin.hybrid_parallel." + option->second);
    if ((at == layout.end() ? "1" : at->second) != value) return false;
  }
  const auto plugin = train::configured_plugin(as_stored);
  return as_stored.parallel.sizes.at("dp") == train::data_parallel_size(*plugin, ranks);
}

/// The choice of the run that is in this folder. Unset if there is none, or if it was for other ranks or another layout
/// of the user's.
std::optional<Settings> kept_choice(const train::RunConfig& config, int ranks) {
  const auto path = config.run.dir + "/config.toml";
  std::error_code none;
  if (config.run.resume == train::kResumeNever || !std::filesystem::exists(path, none)) return std::nullopt;
  try {
    const auto stored = config::parse_file(path);
    Settings layout, of_train;
    const auto add = [&](const std::string& section, const config::Table& table) {
      for (const auto& [key, entry] : table.entries) layout[section + "." + key] = config::to_toml(entry.value);
    };
    add("parallel", config::section_of(stored, "parallel"));
    if (const auto* plugins = stored.table("plugin"))
      for (const auto& [name, section] : plugins->tables) add("plugin." + name, section);
    for (const auto* key : {"micro_batch", "recompute"})
      if (const auto* entry = stored.find("train", key); entry != nullptr && config.root.find("train", key) == nullptr)
        of_train[std::string("train.") + key] = config::to_toml(entry->value);
    const auto as_stored = with_settings(config, layout);
    if (!chooses_layout(config)) {
      if (layout_of(as_stored, ranks) != layout_of(config, ranks)) return std::nullopt;
      of_train.erase("train.recompute");
      return of_train;
    }
    if (!matches(layout, as_stored, config.root, ranks)) return std::nullopt;
    layout.merge(of_train);
    return layout;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

struct Choice {
  Settings settings{};
  std::string said{}, problem{};
};

Choice choose(const train::RunConfig& config, const LaunchInfo& info, const Log& log) {
  constexpr int kMostForecasts = 100;  // ends most searches, so that they choose alike on slow machines
  if (auto kept = kept_choice(config, info.size)) return {*std::move(kept), "as before"};
  const bool layout = chooses_layout(config);
  // All ranks wait.
  const double most_seconds = std::min({kMostSeconds, config.comm.init_timeout_s / 2, config.comm.timeout_s / 2});
  log.note("searching for the fastest {} of {}, for at most {} seconds", layout ? "layout" : "microbatches",
           text::quantity(info.size, "rank"), most_seconds);
  const MetaKernels kernels;
  auto machine = machine_of(config);
  machine.ranks_per_host = info.local_size;
  SearchOptions options{
      .ranks = info.size, .keeps_layout = !layout, .most_forecasts = kMostForecasts, .most_seconds = most_seconds};
  if (config.run.memory_mb > 0)
    options.memory = config.run.memory_mb * (1 << 20);
  else if (const auto left = machine.tensor_bytes())
    options.memory = *left;
  for (const auto& [key, entry] : config::section_of(config.root, "train").entries)
    options.fixed.insert("train." + key);
  if (layout) options.given = set_in_parallel(config.root);
  const auto found = search_layouts(config, machine, options);
  if (found.fitting.empty())
    config::fail(config.root.table(layout ? "parallel" : "train"), layout ? "plugin" : "micro_batch",
                 found.is_complete ? why_none(options, found)
                                   : "no layout that fits was found; find one with trireme plan --search, or use more "
                                     "ranks");
  const auto& best = found.fitting.front();
  return {best.settings, fmt::format("{} is the fastest of {} (planned: {:.1f} ms a step, {} a rank; rates of {}, {})",
                                     layout ? layout_text(best.settings)
                                            : fmt::format("train.micro_batch={}", best.forecast.micro_batch),
                                     text::quantity(found.forecasts, "forecast"), 1e3 * best.forecast.time.step,
                                     text::bytes(static_cast<double>(best.forecast.memory.peak)), machine.name,
                                     machine.estimated ? "estimated" : "measured")};
}

}  // namespace

bool is_auto(const train::RunConfig& config) { return chooses_layout(config) || config.auto_micro_batch; }

AutoLayout with_auto_layout(const train::RunConfig& config, comm::World& world, const Log& log) {
  Choice choice;
  if (world.rank() == 0) {
    try {
      choice = choose(config, world.info(), log);
    } catch (const ConfigError& error) {  // which the others have to know
      choice.problem = error.what();
    }
  }
  const nlohmann::json own{{"settings", choice.settings}, {"said", choice.said}, {"problem", choice.problem}};
  const auto all = parse_json(comm::broadcast_text(world.group(), json_text(own)));
  if (const auto problem = all.at("problem").get<std::string>(); !problem.empty()) throw ConfigError(problem);
  return {with_settings(config, all.at("settings").get<Settings>()), all.at("said").get<std::string>()};
}

Unsearched without_search(train::RunConfig config, int ranks) {
  if (!is_auto(config)) return {std::move(config), ranks};
  if (const auto kept = kept_choice(config, ranks)) return {with_settings(config, *kept), ranks};
  if (!chooses_layout(config)) return {std::move(config), ranks};
  return {with_settings(config, {{"parallel.dp", "1"}}), 1};
}

}  // namespace trireme::plan
