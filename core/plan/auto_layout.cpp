#include "core/plan/auto_layout.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/comm/mesh.h"
#include "core/plan/layout_search.h"
#include "core/plan/meta_kernels.h"
#include "core/resume/resume_point.h"
#include "core/setup/plugin_sections.h"

namespace trireme::plan {
namespace {

constexpr const char* kSections[] = {"parallel", "plugin"};

/// The plugin and its axes: "torch_ddp 2 = dp 2".
std::string layout_of(train::RunConfig config, int ranks) {
  const auto plugin = train::configured_plugin(config);
  const auto axes = plugin->axes(ranks);
  comm::Mesh::validate(axes, ranks);
  std::string out = plugin->name();
  for (const auto& axis : axes) out += fmt::format(" {} {}", axis.kind.name, axis.size);
  return out;
}

/// The choice of the run that is in this folder. Unset if there is none, or if it was for other ranks or, with a layout
/// of the user's, for another one.
std::optional<train::RunConfig> kept_choice(const train::RunConfig& config, bool chooses_layout, int ranks) {
  const auto path = config.run.dir + "/config.toml";
  std::error_code none;
  if (config.run.resume == train::kResumeNever || !std::filesystem::exists(path, none)) return std::nullopt;
  try {
    const auto stored = config::parse_file(path);
    const auto adopt = [&](config::Table& root, const char* key) {
      if (const auto* entry = stored.find("train", key); entry != nullptr && root.find("train", key) == nullptr)
        root.tables["train"].entries[key] = *entry;
    };
    auto root = config.root;
    for (const auto* name : kSections) {
      root.tables.erase(name);
      if (const auto* section = stored.table(name)) root.tables[name] = *section;
    }
    adopt(root, "micro_batch");
    adopt(root, "recompute");
    auto kept = with_root(config, std::move(root));
    const auto layout = layout_of(kept, ranks);
    if (chooses_layout) return kept;
    if (layout != layout_of(config, ranks)) return std::nullopt;
    auto own = config.root;
    adopt(own, "micro_batch");
    return with_root(config, std::move(own));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace

AutoLayout with_auto_layout(train::RunConfig config, const LaunchInfo& info) {
  const bool chooses_layout = config.parallel.plugin == train::kAuto;
  if (!chooses_layout && !config.auto_micro_batch) return {std::move(config)};
  if (auto kept = kept_choice(config, chooses_layout, info.size)) return {*std::move(kept), "as before"};
  const MetaKernels kernels;
  auto machine = machine_of(config);
  machine.ranks_per_host = info.local_size;
  machine.cores = 0;                   // ranks would not measure the same time for a sample
  constexpr int kMostForecasts = 100;  // a number, and not a time, so that all ranks choose alike
  SearchOptions options{.ranks = info.size, .keeps_layout = !chooses_layout, .most_forecasts = kMostForecasts};
  if (config.run.memory_mb > 0)
    options.memory = config.run.memory_mb * (1 << 20);
  else if (const auto left = machine.tensor_bytes())
    options.memory = *left;
  for (const auto& [key, entry] : config::section_of(config.root, "train").entries)
    options.fixed.insert("train." + key);
  const auto found = search_layouts(config, machine, options);
  if (found.fitting.empty())
    config::fail(config.root.table(chooses_layout ? "parallel" : "train"), chooses_layout ? "plugin" : "micro_batch",
                 found.is_complete ? why_none(options, found)
                                   : "no layout that fits was found; find one with trireme plan --search, or use more "
                                     "ranks");
  const auto& best = found.fitting.front();
  return {with_settings(config, best.settings),
          fmt::format("{} is the fastest of {} (planned: {:.1f} ms a step, {} a rank; rates of {}, {})",
                      chooses_layout ? layout_text(best.settings)
                                     : fmt::format("train.micro_batch={}", best.forecast.micro_batch),
                      text::quantity(found.forecasts, "forecast"), 1e3 * best.forecast.time.step,
                      text::bytes(static_cast<double>(best.forecast.memory.peak)), machine.name,
                      machine.estimated ? "estimated" : "measured")};
}

}  // namespace trireme::plan
