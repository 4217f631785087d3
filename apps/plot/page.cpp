#include "apps/plot/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/base/version.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

constexpr const char* kChartJs = "chart.min.js";

/// Fewer digits make a smaller page.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

json whole(double value) {
  constexpr double kExact = 9e15;
  return std::abs(value) < kExact ? json(std::llround(value)) : json(value);
}

json values_json(const Series& series, bool is_band) {
  json out;
  for (const auto& point : series) {
    out["value"].push_back(rounded(point.value));
    if (!is_band) continue;
    out["least"].push_back(rounded(point.least));
    out["most"].push_back(rounded(point.most));
  }
  return out;
}

json series_json(const Series& series, bool is_band) {
  auto out = values_json(series, is_band);
  const bool has_tokens =
      std::all_of(series.begin(), series.end(), [](const Point& point) { return std::isfinite(point.at.tokens); });
  for (const auto& point : series) {
    out["step"].push_back(whole(point.at.step));
    out["samples"].push_back(whole(point.at.samples));
    if (has_tokens) out["tokens"].push_back(whole(point.at.tokens));
    out["seconds"].push_back(rounded(point.at.seconds));
  }
  return out;
}

json charts_json(const Plot& plot) {
  auto out = json::array();
  for (const auto& chart : plot.charts) {
    json all{{"id", chart.id}, {"title", chart.title}, {"unit", chart.unit}, {"is_loss", chart.is_loss}};
    for (std::size_t group = 0; group < plot.groups.size(); ++group) {
      const auto& of = plot.groups[group];
      const auto found = of.series.find(chart.id);
      if (found == of.series.end()) continue;
      const bool is_band = of.runs.size() > 1;
      auto& series = all["series"].emplace_back(series_json(found->second, is_band));
      series["group"] = group;
      if (const auto means = of.means.find(chart.id); means != of.means.end())
        series["means"] = values_json(means->second, is_band);
    }
    out.push_back(std::move(all));
  }
  return out;
}

/// {"parts": [...], "bars": [{"run": 0, "values": [...]}, ...]}, with a bar for each run whose `bar_of` is not null.
template <class Bar>
json bars_json(const Plot& plot, json parts, const Bar& bar_of) {
  json out{{"parts", std::move(parts)}, {"bars", json::array()}};
  for (std::size_t run = 0; run < plot.runs.size(); ++run)
    if (json bar = bar_of(plot.runs[run]); !bar.is_null()) {
      bar["run"] = run;
      out["bars"].push_back(std::move(bar));
    }
  return out;
}

json memory_json(const Plot& plot) {
  return bars_json(plot, PeakMemory::kParts, [](const PlotRun& run) {
    return run.memory ? json{{"rank", run.memory->rank}, {"values", run.memory->bytes}} : json();
  });
}

json step_json(const Plot& plot) {
  return bars_json(plot, StepParts::kParts, [](const PlotRun& run) {
    return run.step ? json{{"values", run.step->seconds}} : json();
  });
}

json times_json(const Plot& plot) {
  return bars_json(plot, text::keys_of(train::RunTimes().parts()), [](const PlotRun& run) {
    const auto& times = run.record.times;
    if (times.wall() <= 0) return json();
    auto values = json::array();
    for (const auto& [part, seconds] : times.parts()) values.push_back(rounded(seconds));
    return json{{"values", values}};
  });
}

json results_json(const Plot& plot) {
  json out{{"columns", {"state", "step", "best validation"}}, {"rows", json::array()}};
  std::vector<const Chart*> with_results;
  for (const auto& chart : plot.charts)
    if (chart.is_result) with_results.push_back(&chart);
  for (const auto* chart : with_results) {
    auto name = chart->title;
    name.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(name.front())));
    out["columns"].push_back("last " + name);
  }
  for (const auto* column : {"goodput", "wall time", "ranks", "plugin"}) out["columns"].push_back(column);
  for (const auto& run : plot.runs) {
    const auto& record = run.record;
    json row{name_of(record.state),
             record.steps > 0 ? fmt::format("{} of {}", record.step, record.steps) : std::to_string(record.step),
             best_text(record)};
    for (const auto* chart : with_results) {
      const auto last = run.last.find(chart->id);
      row.push_back(last == run.last.end() ? "" : fmt::format("{:.4g}", last->second));
    }
    row.push_back(record.times.starts > 0 ? fmt::format("{:.1f} %", 100 * record.times.goodput()) : "");
    row.push_back(text::clock(record.times.wall()));
    row.push_back(record.layout);
    row.push_back(record.plugin);
    out["rows"].push_back(std::move(row));
  }
  return out;
}

json settings_json(const Plot& plot) {
  json out{{"columns", plot.differing}, {"rows", json::array()}};
  for (const auto& run : plot.runs) {
    auto row = json::array();
    for (const auto& key : plot.differing) {
      const auto found = run.config.find(key);
      row.push_back(found == run.config.end() ? "" : found->second);
    }
    out["rows"].push_back(std::move(row));
  }
  return out;
}

std::string part_of_page(const std::string& parts, const std::string& name) {
  const auto path = parts + "/" + name;
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!content.empty()) return content;
  if (name == kChartJs)
    throw ConfigError(fmt::format(
        "{} is missing: Trireme was built without Chart.js. Install Debian's libjs-chart.js (Ubuntu has it, "
        "too), configure and build again; or draw one chart as SVG: --chart loss",
        path));
  throw ConfigError(path + " is missing: the build or the installation is not complete");
}

/// JSON in which no tag of HTML can begin.
std::string script_text(const json& data) {
  std::string out;
  for (const char c : json_text(data)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

json page_data(const Plot& plot) {
  json out{{"version", TRIREME_VERSION},
           {"written", std::llround(unix_seconds())},
           {"most_points", plot.is_thinned ? kMostPoints : 0},
           {"runs", json::array()},
           {"groups", json::array()},
           {"marks", json::array()},
           {"charts", charts_json(plot)},
           {"memory", memory_json(plot)},
           {"step", step_json(plot)},
           {"times", times_json(plot)},
           {"results", results_json(plot)},
           {"settings", settings_json(plot)}};
  for (const auto& run : plot.runs) out["runs"].push_back({{"name", run.name}, {"dir", run.record.dir}});
  for (std::size_t group = 0; group < plot.groups.size(); ++group) {
    const auto& [name, runs, series, means] = plot.groups[group];
    out["groups"].push_back({{"name", name}, {"runs", runs}});
    for (const auto run : runs)
      for (const auto& mark : plot.runs[run].marks)
        out["marks"].push_back({{"group", group},
                                {"kind", name_of(mark.kind)},
                                {"text", mark.text},
                                {"step", whole(mark.at.step)},
                                {"samples", whole(mark.at.samples)},
                                {"tokens", whole(mark.at.tokens)},
                                {"seconds", rounded(mark.at.seconds)}});
  }
  return out;
}

std::string page_text(const Plot& plot, const std::string& parts) {
  const auto page = part_of_page(parts, "page.html");
  std::string out;
  // {{NAME}} is replaced by the data or by a file. What has been inserted is not looked at again.
  std::size_t at = 0;
  for (auto begin = page.find("{{"); begin != page.npos; begin = page.find("{{", at)) {
    const auto end = page.find("}}", begin);
    const auto name = page.substr(begin + 2, end - begin - 2);
    out += page.substr(at, begin - at);
    out += name == "data" ? script_text(page_data(plot)) : part_of_page(parts, name);
    at = end + 2;
  }
  return out + page.substr(at);
}

std::size_t charts_in_page(const Plot& plot) {
  const auto has = [&](auto condition) { return std::any_of(plot.runs.begin(), plot.runs.end(), condition) ? 1U : 0U; };
  return plot.charts.size() + has([](const PlotRun& run) { return run.memory.has_value(); }) +
         has([](const PlotRun& run) { return run.step.has_value(); }) +
         has([](const PlotRun& run) { return run.record.times.wall() > 0; });
}

}  // namespace trireme::apps
