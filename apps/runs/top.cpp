#include "apps/runs/top.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "apps/report.h"
#include "apps/runs/run_record.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/json_members.h"
#include "core/base/terminal_text.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

/// The last lines of each kind that are shown.
struct Last {
  json step{}, evaluation{}, save{};
  double samples_per_s = 0;  ///< smoothed over the last steps

  void take(const json& line) {
    if (is_in(line, "kind", "step")) {
      step = line;
      const double now = number_in(line, "samples_per_s").value_or(0);
      samples_per_s = samples_per_s > 0 ? 0.9 * samples_per_s + 0.1 * now : now;
    }
    if (is_in(line, "kind", "eval") && is_in(line, "split", "validation")) evaluation = line;
    if (is_in(line, "event", "save")) save = line;
  }
};

double number(const json& line, const char* key) { return number_in(line, key).value_or(0); }
/// JSON has null for a number that is not finite.
double number_or_nan(const json& line, const char* key) { return number_in(line, key).value_or(NAN); }

/// At most `columns` wide: a line that the terminal wraps would be two.
std::string cut_to(const std::string& line, std::size_t columns) {
  return line.size() < columns ? line : line.substr(0, text::utf8_prefix(line.substr(0, columns - 1)));
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// {label, text} of each line.
std::vector<std::vector<std::string>> rows_of(const RunRecord& run, const Last& last) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* label, std::string text) { rows.push_back({label, std::move(text)}); };
  add("run", fmt::format("{}: {}, last line {} ago", for_terminal(run.dir), name_of(run.state),
                         text::clock(unix_seconds() - run.times.end)));
  if (!run.plugin.empty()) add("ranks", fmt::format("{} ({})", run.layout, run.plugin));
  auto step = std::to_string(run.step);
  if (run.steps > 0) {
    step +=
        fmt::format(" of {} ({})", run.steps, percent(static_cast<double>(run.step) / static_cast<double>(run.steps)));
    const double samples = number(last.step, "samples");
    if (run.state == RunState::running && last.samples_per_s > 0)
      step += fmt::format(", {} left",
                          text::clock(static_cast<double>(run.steps - run.step) * samples / last.samples_per_s));
  }
  add("step", step);
  if (last.step.is_object()) {
    add("train", fmt::format("loss {:.4f}, lr {:.2e}, gradient norm {:.3g}", number_or_nan(last.step, "loss"),
                             number(last.step, "lr"), number_or_nan(last.step, "grad_norm")));
    add("speed", fmt::format("{:.1f} samples/s, {} waiting for data", last.samples_per_s,
                             percent(number(last.step, "data_wait"))));
  }
  if (last.evaluation.is_object()) {
    auto line = fmt::format("step {:.0f}: loss {:.4f}", number(last.evaluation, "step"),
                            number_or_nan(last.evaluation, "loss"));
    const auto best = [&](double value) { return run.is_fraction ? percent(value) : fmt::format("{:.4g}", value); };
    if (run.best_by != "loss" && last.evaluation.contains(run.best_by))
      line += fmt::format(", {} {}", run.best_by, best(number(last.evaluation, run.best_by.c_str())));
    if (run.best) line += fmt::format("; best {} {}", run.best_by, best(*run.best));
    add("valid", line);
  }
  if (last.save.is_object())
    add("saved", fmt::format("step {:.0f}, {} ago", number(last.save, "step"),
                             text::clock(unix_seconds() - number(last.save, "time"))));
  if (run.times.starts > 0) add("goodput", run.times.text());
  return rows;
}

}  // namespace

int top(const TopCommand& command) {
  if (!is_run(command.run))
    throw ConfigError(command.run + ": no run folder; it would have a config.toml and a metrics.jsonl");
  Last last;
  int begins = 0;
  RunReader reader(command.run, [&](const json& line) {
    if (begins != reader.begins()) last = {};  // lines of later steps were dropped
    begins = reader.begins();
    last.take(line);
  });
  const bool live = terminal_columns(STDOUT_FILENO) > 0;
  for (std::size_t shown = 0;;) {
    const auto& run = reader.read();
    const auto rows = rows_of(run, last);
    std::string picture = shown > 0 ? fmt::format("\x1b[{}A\x1b[J", shown) : "";
    const auto columns = static_cast<std::size_t>(terminal_columns(STDOUT_FILENO));
    const auto lines = text::split(text::columns(rows, {false, false}), '\n');
    for (const auto& line : lines) picture += (live ? cut_to(line, columns) : line) + "\n";
    shown = lines.size();
    put(picture);
    std::fflush(stdout);
    if (!live || run.state != RunState::running || !output_error().empty()) return 0;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace trireme::apps
