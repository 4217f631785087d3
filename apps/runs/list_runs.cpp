#include "apps/runs/list_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/report.h"
#include "apps/runs/run_record.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/terminal_text.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

/// "12 s", "5 min", "3 h", "12 days": since the last line of the run.
std::string age_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", std::max(0.0, seconds));
  if (seconds < 100 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

json json_of(const RunRecord& run, double now) {
  json out{{"run", run.dir},
           {"state", name_of(run.state)},
           {"step", run.step},
           {"steps", run.steps},
           {"best_by", run.best_by},
           {"best", nullptr},
           {"layout", run.layout},
           {"plugin", run.plugin},
           {"age_s", now - run.times.end},
           {"times", to_json(run.times)}};
  if (run.best) out["best"] = *run.best;
  return out;
}

}  // namespace

int list_runs(const RunsCommand& command) {
  std::vector<RunRecord> runs;
  for (const auto& dir : find_runs(command.dir)) {
    try {
      runs.push_back(read_run(dir));
    } catch (const CheckpointError& error) {  // such as one that is moved just now
      say_error(error.what());
    }
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const RunRecord& a, const RunRecord& b) { return a.times.end > b.times.end; });
  const double now = unix_seconds();
  if (command.json) {
    auto list = json::array();
    for (const auto& run : runs) list.push_back(json_of(run, now));
    put(json_text(list, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows{
      {"run", "state", "step", "best validation", "goodput", "ranks", "plugin", "last line"}};
  for (const auto& run : runs) {
    const auto steps = run.steps > 0 ? fmt::format("{} of {}", run.step, run.steps) : std::to_string(run.step);
    rows.push_back({for_terminal(run.dir), name_of(run.state), steps, best_text(run),
                    run.times.starts > 0 ? fmt::format("{:.1f} %", 100 * run.times.goodput()) : "-",
                    or_dash(run.layout), or_dash(run.plugin),
                    run.times.end > 0 ? age_text(now - run.times.end) + " ago" : "-"});
  }
  put(text::columns(rows, {false, false, true, false, true, false, false, true}) + "\n");
  return 0;
}

}  // namespace trireme::apps
