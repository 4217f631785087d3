#include "apps/plot/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/json_members.h"
#include "core/base/json_parse.h"
#include "core/config/document.h"
#include "core/config/table.h"

namespace trireme::apps {
namespace {

using Settings = std::map<std::string, std::string>;

void flatten(const config::Table& table, const std::string& prefix, Settings& out) {
  for (const auto& [key, entry] : table.entries) out[prefix + key] = config::plain_text(entry.value);
  for (const auto& [key, inner] : table.tables) flatten(inner, prefix + key + ".", out);
  for (const auto& [key, array] : table.arrays)
    for (std::size_t i = 0; i < array.size(); ++i) flatten(array[i], fmt::format("{}{}[{}].", prefix, key, i + 1), out);
}

/// Without what says only where the run is and how it was started.
Settings settings_of(const std::string& dir) {
  Settings out;
  flatten(config::parse_file(dir + "/config.toml"), "", out);
  out.erase("run.dir");
  const auto resume = out.find("run.resume");
  if (resume != out.end() && (resume->second == "auto" || resume->second == "must" || resume->second == "never"))
    out.erase(resume);
  return out;
}

Settings without_seed(Settings settings) {
  settings.erase("run.seed");
  return settings;
}

std::vector<std::string> differing_keys(const std::vector<PlotRun>& runs) {
  std::set<std::string> keys, out;
  for (const auto& run : runs)
    for (const auto& [key, value] : run.config) keys.insert(key);
  const auto value_in = [](const PlotRun& run, const std::string& key) {
    const auto found = run.config.find(key);
    return found == run.config.end() ? std::nullopt : std::optional(found->second);
  };
  for (const auto& key : keys)
    for (const auto& run : runs)
      if (value_in(run, key) != value_in(runs.front(), key)) out.insert(key);
  return {out.begin(), out.end()};
}

/// The paths without the folders that all of them are in.
std::vector<std::string> short_names(const std::vector<std::string>& dirs) {
  std::vector<std::vector<std::string>> paths;
  for (const auto& dir : dirs) {
    auto& path = paths.emplace_back();
    for (const auto& part : std::filesystem::path(dir)) path.push_back(part.string());
  }
  std::size_t common = 0;
  const auto shared = [&] {
    return std::all_of(paths.begin(), paths.end(), [&](const auto& path) {
      return path.size() > common + 1 && path[common] == paths.front()[common];
    });
  };
  while (shared()) ++common;
  std::vector<std::string> out;
  for (const auto& path : paths) {
    std::filesystem::path name;
    for (auto part = common; part < path.size(); ++part) name /= path[part];
    out.push_back(name.string());
  }
  return out;
}

/// Whole paths without links, each once.
std::vector<std::string> run_folders(const std::vector<std::string>& folders) {
  std::vector<std::string> out;
  for (const auto& folder : folders)
    for (const auto& dir : find_runs(folder)) {
      std::error_code none;
      const auto whole_path = std::filesystem::canonical(dir, none).string();
      auto path = none ? dir : whole_path;  // it may have been removed meanwhile
      if (std::find(out.begin(), out.end(), path) == out.end()) out.push_back(std::move(path));
    }
  return out;
}

/// summary.json; an empty object without one.
nlohmann::json summary_of(const std::string& dir) {
  std::ifstream file(dir + "/summary.json", std::ios::binary);
  auto summary = parse_json_or_null(std::string{std::istreambuf_iterator<char>(file), {}});
  return summary.is_object() ? summary : nlohmann::json::object();
}

double amount_at(const nlohmann::json& object, const char* key) {
  return std::max(0.0, number_in(object, key).value_or(0));
}

std::optional<StepParts> step_of(const nlohmann::json& summary) {
  const auto split = summary.value("split", nlohmann::json());
  if (!split.is_object()) return std::nullopt;
  StepParts out;
  for (std::size_t i = 0; i < out.seconds.size(); ++i) out.seconds[i] = amount_at(split, StepParts::kParts[i]);
  return out;
}

std::optional<PeakMemory> memory_of(const nlohmann::json& summary) {
  const auto ranks = summary.value("ranks", nlohmann::json::array());
  std::optional<PeakMemory> out;
  double largest = 0;
  for (const auto& rank : ranks) {
    const double peak = rank.is_object() ? amount_at(rank, "peak_tensor_bytes") : 0;
    if (peak <= std::exchange(largest, std::max(largest, peak))) continue;
    out = PeakMemory{.rank = static_cast<std::int64_t>(std::min(amount_at(rank, "rank"), 1e9)),
                     .bytes = {amount_at(rank, "parameter_bytes"), amount_at(rank, "gradient_bytes"),
                               amount_at(rank, "optimizer_bytes"), amount_at(rank, "average_bytes"),
                               amount_at(rank, "peak_gathered_bytes")}};
    out->bytes.back() = std::max(0.0, peak - std::accumulate(out->bytes.begin(), out->bytes.end(), 0.0));
  }
  return out;
}

/// "base" for base-seed1, base-seed2 and so on, else the name of the first.
std::string name_of_seeds(const std::vector<std::string>& names) {
  auto common = names.front();
  for (const auto& name : names)
    common.resize(static_cast<std::size_t>(std::mismatch(common.begin(), common.end(), name.begin(), name.end()).first -
                                           common.begin()));
  const auto drop = [&](std::string_view characters) {
    while (!common.empty() && characters.find(common.back()) != characters.npos) common.pop_back();
  };
  drop("0123456789");  // those that seeds have in common: 10, 11
  drop("-_./ =");
  if (common.ends_with("seed")) common.resize(common.size() - 4);
  drop("-_./ =");
  return common.empty() ? names.front() : common;
}

std::string seed_of(const PlotRun& run) {
  const auto found = run.config.find("run.seed");
  return found == run.config.end() ? "" : found->second;
}

/// Whether the run differs from each run of the group in its seed, and in nothing else that is known.
bool is_another_seed(const Plot& plot, const PlotGroup& group, const PlotRun& run) {
  return std::all_of(group.runs.begin(), group.runs.end(), [&](std::size_t index) {
    const auto& other = plot.runs[index];
    return seed_of(other) != seed_of(run) && other.record.layout == run.record.layout &&
           other.record.plugin == run.record.plugin;
  });
}

/// Reads the metrics of runs whose configurations are the same but for the seed, and adds their groups.
void read_groups(Plot& plot, const std::vector<std::size_t>& alike) {
  std::vector<std::pair<PlotGroup, MeanSeries>> groups;
  for (const auto index : alike) {
    auto& run = plot.runs[index];
    auto [record, series, marks] = read_series(run.record.dir);
    run.record = std::move(record);
    run.marks = std::move(marks);
    for (const auto& [name, points] : series) run.last[name] = points.back().value;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& each) { return is_another_seed(plot, each.first, run); });
    if (group == groups.end()) group = groups.insert(group, {PlotGroup{}, MeanSeries()});
    group->first.runs.push_back(index);
    group->second.add(std::move(series));
  }
  for (auto& [group, means] : groups) {
    for (auto& [name, points] : means.take()) {
      auto [kept, part_means] = thinned(std::move(points));
      group.series[name] = std::move(kept);
      if (part_means.empty()) continue;
      group.means[name] = std::move(part_means);
      plot.is_thinned = true;
    }
    plot.groups.push_back(std::move(group));
  }
}

void name_groups(Plot& plot) {
  std::set<std::string> taken;
  for (auto& group : plot.groups) {
    std::vector<std::string> names;
    for (const auto run : group.runs) names.push_back(plot.runs[run].name);
    const auto seeds = names.size() == 1 ? "" : fmt::format(" ({} seeds)", names.size());
    group.name = (names.size() == 1 ? names.front() : name_of_seeds(names)) + seeds;
    if (!taken.insert(group.name).second) group.name = names.front() + seeds;
  }
}

std::vector<Chart> charts_of(const std::vector<PlotGroup>& groups) {
  std::set<std::string> known, metrics;
  for (const auto& group : groups)
    for (const auto& [name, points] : group.series) known.insert(name);
  std::vector<Chart> out;
  const auto add = [&](Chart chart) {
    if (known.erase(chart.id) > 0) out.push_back(std::move(chart));
  };
  add({"loss", "Training loss", "loss", true, true});
  add({"validation_loss", "Validation loss", "loss", true, true});
  auto others = std::vector<Chart>{{"lr", "Learning rate", "learning rate", false},
                                   {"grad_norm", "Gradient norm", "norm", false},
                                   {"throughput", "Throughput", "samples/s", false}};
  metrics = known;
  for (const auto& chart : others) metrics.erase(chart.id);
  for (const auto& metric : metrics) {
    auto words = metric.starts_with("validation_") ? metric.substr(metric.find('_') + 1) : metric;
    std::replace(words.begin(), words.end(), '_', ' ');
    add({metric, "Validation " + words, words});
  }
  for (auto& chart : others) add(std::move(chart));
  return out;
}

}  // namespace

Plot read_plot(const std::vector<std::string>& folders) {
  Plot plot;
  const auto dirs = run_folders(folders);
  const auto names = short_names(dirs);
  std::vector<std::pair<Settings, std::vector<std::size_t>>> alike;
  for (std::size_t i = 0; i < dirs.size(); ++i) {
    auto& run = plot.runs.emplace_back(PlotRun{.name = names[i], .config = settings_of(dirs[i])});
    run.record.dir = dirs[i];
    const auto summary = summary_of(dirs[i]);
    run.memory = memory_of(summary);
    run.step = step_of(summary);
    auto settings = without_seed(run.config);
    auto found = std::find_if(alike.begin(), alike.end(), [&](const auto& each) { return each.first == settings; });
    if (found == alike.end()) found = alike.insert(found, {std::move(settings), {}});
    found->second.push_back(i);
  }
  for (const auto& [settings, runs] : alike) read_groups(plot, runs);
  std::sort(plot.groups.begin(), plot.groups.end(),
            [](const PlotGroup& a, const PlotGroup& b) { return a.runs.front() < b.runs.front(); });
  name_groups(plot);
  plot.charts = charts_of(plot.groups);
  plot.differing = differing_keys(plot.runs);
  return plot;
}

}  // namespace trireme::apps
