#include "apps/launcher/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/config_file.h"
#include "apps/launcher/worker.h"
#include "apps/layouts.h"
#include "apps/report.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/json_members.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/owned_folder.h"
#include "core/base/text.h"
#include "core/launch/process.h"
#include "core/launch/rank_variables.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

/// A layout, or a program of the user's, and what was measured of it.
struct Candidate {
  std::string name;
  std::int64_t ranks = 1, threads = 0;      ///< threads of a rank; 0: its own choice
  std::optional<Layout> layout{};           ///< unset: the file's own, or a program
  std::optional<ranks::Program> program{};  ///< the user's; unset: a layout
  std::vector<double> steps{}, medians{};   ///< seconds of each step, and the median of each round
  json last{};                              ///< the last round's (core/train/report/measurement.h)
};

/// @pre `values` is not empty. `at`: from 0 to 1
double quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  const double position = at * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

/// How far the rounds' medians are apart, relative to the lowest; null of one round.
json spread_of(const Candidate& candidate) {
  if (candidate.medians.size() < 2) return {};
  const auto [low, high] = std::minmax_element(candidate.medians.begin(), candidate.medians.end());
  return *high / *low - 1;
}

/// The layouts to measure, else the file as it is. @throws ConfigError that names the layout
std::vector<Candidate> candidates_of(const BenchCommand& command) {
  std::vector<Candidate> out;
  if (command.layouts.empty())
    out.push_back({.name = std::filesystem::path(command.config).filename().string(),
                   .ranks = command.ranks.value_or(1),
                   .threads = threads_of(read_config(command.config, command.set))});
  else
    for (auto& layout : parse_layouts(command.layouts)) {
      const auto threads = threads_of_layout(command.config, command.set, layout);
      out.push_back({.name = layout.text, .ranks = layout.ranks(), .threads = threads, .layout = layout});
    }
  return out;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The last line of the program's output that is a JSON object with step_s. @throws ConfigError when there is none
json measured_by(const std::string& program, const std::string& output) {
  json out;
  for (const auto& line : text::split(output, '\n'))
    if (auto parsed = parse_json_or_null(line); parsed.is_object() && parsed.contains("step_s"))
      out = std::move(parsed);
  const auto found = out.is_null() ? json() : out["step_s"];
  const auto is_time = [](const json& value) { return value.is_number() && value.get<double>() > 0; };
  if (is_time(found)) out["step_s"] = json::array({found});
  if (!is_time(found) && !(found.is_array() && !found.empty() && std::all_of(found.begin(), found.end(), is_time)))
    throw ConfigError(fmt::format(
        "--against {}: it printed no line of JSON with \"step_s\", the seconds of a step or a list of them", program));
  return out;
}

/// A shell script that runs the user's program, with its output in `into`, in the user's environment: without what
/// ranks get here.
std::string script_of(const std::string& program, const std::string& into) {
  auto changed = rank_variables(0, 1, 0, "", 0);
  changed.emplace_back("OMP_WAIT_POLICY", "");
  std::string out;
  for (const auto& [name, value] : changed)
    if (const char* before = std::getenv(name.c_str()); before == nullptr)
      out += fmt::format("unset {}\n", name);
    else
      out += fmt::format("export {}={}\n", name, text::shell_word(before));
  return fmt::format("{}exec >{}\n{}\n", out, text::shell_word(into), program);
}

/// Measures a candidate once more. Returns how its ranks ended.
RunEnd measure(Supervisor& supervisor, const BenchCommand& command, Candidate& candidate, const std::string& into,
               double seconds) {
  std::remove(into.c_str());
  RunEnd end;
  if (candidate.program) {
    end = supervisor.run({.program = *candidate.program});
  } else {
    std::vector<std::string> arguments{"measure", command.config, "--into",
                                       into,      "--seconds",    fmt::format("{}", seconds)};
    if (!command.profile.empty()) arguments.emplace_back("--profile");
    if (candidate.layout) arguments.insert(arguments.end(), {"--layout", candidate.layout->text});
    for (const auto& set : command.set) arguments.insert(arguments.end(), {"--set", set});
    end = run_ranks(supervisor, candidate.ranks, candidate.threads, arguments);
  }
  if (end.code != 0) return end;
  try {
    candidate.last = candidate.program ? measured_by(command.against, content_of(into)) : parse_json(content_of(into));
  } catch (const ConfigError& error) {
    say_error(error.what());
    end.code = static_cast<int>(error.code());
    return end;
  }
  const auto steps = candidate.last.at("step_s").get<std::vector<double>>();
  candidate.steps.insert(candidate.steps.end(), steps.begin(), steps.end());
  candidate.medians.push_back(quantile(steps, 0.5));
  return end;
}

json json_of(const Candidate& candidate) {
  const double median = quantile(candidate.steps, 0.5);
  json out = candidate.last;
  out["name"] = candidate.name;
  out["ranks"] = candidate.program ? json() : json(candidate.ranks);
  out["steps"] = candidate.steps.size();
  out["step_s"] = {{"median", median},
                   {"p10", quantile(candidate.steps, 0.1)},
                   {"p90", quantile(candidate.steps, 0.9)},
                   {"rounds", candidate.medians},
                   {"spread", spread_of(candidate)}};
  const auto samples = number_in(out, "samples"), flops = number_in(out, "flops"), peak = number_in(out, "peak_flops");
  if (samples) out["samples_per_s"] = *samples / median;
  if (flops) out["flops_per_s"] = *flops / median;
  if (flops && peak) out["mfu"] = *flops / median / *peak;
  return out;
}

std::string name_of(const json& result) { return text::printable(result.at("name").get_ref<const std::string&>()); }

using Rows = std::vector<std::vector<std::string>>;

void print(const Rows& rows) {
  std::vector<bool> right(rows.front().size(), true);
  right.front() = false;
  put(text::columns(rows, right) + "\n");
}

std::string times_text(std::optional<double> value, double factor, int digits) {
  return value ? fmt::format("{:.{}f}", *value * factor, digits) : "-";
}

void print_steps(const std::vector<json>& results) {
  Rows rows{{"step", "ranks", "median ms", "p10", "p90", "spread %", "/ first", "samples/s", "GFLOP/s", "MFU %",
             "first step s"}};
  const double first = results.front().at("step_s").at("median");
  for (const auto& result : results) {
    const auto& step = result.at("step_s");
    rows.push_back({name_of(result), result.at("ranks").is_null() ? "-" : result.at("ranks").dump(),
                    times_text(number_in(step, "median"), 1e3, 1), times_text(number_in(step, "p10"), 1e3, 1),
                    times_text(number_in(step, "p90"), 1e3, 1), times_text(number_in(step, "spread"), 100, 1),
                    times_text(number_in(step, "median"), 1 / first, 3),
                    times_text(number_in(result, "samples_per_s"), 1, 1),
                    times_text(number_in(result, "flops_per_s"), 1e-9, 1), times_text(number_in(result, "mfu"), 100, 1),
                    times_text(number_in(result, "first_step_s"), 1, 2)});
  }
  print(rows);
  for (const auto& result : results)
    if (const auto tuned = text_in(result, "tuned"); !tuned.empty())
      put(fmt::format("{} is tuned: {}\n", name_of(result), tuned));
}

/// A table of `key`'s numbers by their names, for the candidates that have them. `of`: the keys in order
void print_parts(const std::vector<json>& results, const char* title, const char* key, std::vector<const char*> of,
                 double factor) {
  Rows rows{{title}};
  rows.front().insert(rows.front().end(), of.begin(), of.end());
  for (const auto& result : results) {
    const auto parts = result.find(key);
    if (parts == result.end() || !parts->is_object()) continue;
    auto& row = rows.emplace_back(std::vector<std::string>{name_of(result)});
    for (const auto* part : of) row.push_back(times_text(number_in(*parts, part), factor, 1));
  }
  if (rows.size() > 1) put("\n");
  if (rows.size() > 1) print(rows);
}

/// The operators of each candidate's step that take most of the time.
void print_operators(const std::vector<json>& results) {
  constexpr std::size_t kShown = 15;
  for (const auto& result : results) {
    const auto operators = result.find("operators");
    if (operators == result.end()) continue;
    double all = 0;
    for (const auto& each : *operators) all += each.at("seconds").get<double>();
    Rows rows{{"operators of " + name_of(result), "kind", "calls", "ms", "%", "GB/s", "GFLOP/s"}};
    for (const auto& each : *operators) {
      if (rows.size() > kShown) break;
      const double seconds = each.at("seconds"), flops = each.at("flops");
      rows.push_back({each.at("name"), each.at("kind"), times_text(number_in(each, "calls"), 1, 0),
                      times_text(seconds, 1e3, 2), times_text(seconds, 100 / all, 1),
                      times_text(number_in(each, "bytes"), 1e-9 / seconds, 1),
                      flops > 0 ? times_text(flops, 1e-9 / seconds, 1) : "-"});
    }
    put("\n");
    print(rows);
  }
}

/// The blocks of each candidate's model, with the kinds of operators that take a hundredth of the time or more.
void print_blocks(const std::vector<json>& results) {
  for (const auto& result : results) {
    const auto blocks = result.find("blocks");
    if (blocks == result.end()) continue;
    double all = 0;
    std::map<std::string, double> kinds;
    for (const auto& block : *blocks)
      for (const auto& [kind, seconds] : block.at("kinds").items()) {
        kinds[kind] += seconds.get<double>();
        all += seconds.get<double>();
      }
    std::erase_if(kinds, [&](const auto& kind) { return kind.second < 0.01 * all; });
    Rows rows{{"ms of blocks of " + name_of(result), "forward", "backward", "%", "MB", "GFLOP"}};
    for (const auto& [kind, seconds] : kinds) rows.front().push_back(kind);
    for (const auto& block : *blocks) {
      const double forward = block.at("forward"), backward = block.at("backward");
      const auto number = block.at("block").get<int>();
      auto& row = rows.emplace_back(std::vector<std::string>{
          number < 0 ? "outside" : fmt::format("{} {}", number, block.at("name").get<std::string>()),
          times_text(forward, 1e3, 2), times_text(backward, 1e3, 2), times_text(forward + backward, 100 / all, 1),
          times_text(number_in(block, "bytes"), 1e-6, 1), times_text(number_in(block, "flops"), 1e-9, 2)});
      for (const auto& [kind, seconds] : kinds)
        row.push_back(times_text(number_in(block.at("kinds"), kind.c_str()), 1e3, 2));
    }
    put("\n");
    print(rows);
  }
}

[[noreturn]] void refuse_file(const char* option, const std::string& path) {
  throw ConfigError(fmt::format("{} {}: {}; choose another file", option, path, std::strerror(errno)));
}
/// Before anything is measured. @throws ConfigError
void check_writable(const char* option, const std::string& path) {
  const bool is_new = !std::filesystem::exists(path);
  if (!std::ofstream(path, std::ios::app)) refuse_file(option, path);
  if (is_new) std::filesystem::remove(path);
}

/// Writes the operators of rank 0 in each candidate, one process of the trace for each, and takes them out of the
/// results. @throws ConfigError
void write_trace(std::vector<json>& results, const std::string& path) {
  auto events = json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", i}, {"args", {{"name", name_of(results[i])}}}});
    const auto spans = results[i].find("spans");
    if (spans == results[i].end()) continue;
    for (auto& span : *spans) {
      span.update({{"ph", "X"}, {"pid", i}, {"tid", 0}});
      events.push_back(std::move(span));
    }
    results[i].erase("spans");
  }
  errno = 0;
  std::ofstream file(path);
  file << json_text(json{{"traceEvents", std::move(events)}}) << "\n";
  file.close();
  if (!file) refuse_file("--profile", path);
}

}  // namespace

/// Writes the rates of this machine to the user's file.
static int measure_machine(const BenchCommand& command) {
  check_writable("--machine", command.machine);
  Supervisor supervisor;
  return run_ranks(supervisor, command.ranks.value_or(1), /*threads=*/0,
                   {"measure", "--into", command.machine, "--seconds", std::to_string(command.seconds)})
      .code;
}

int bench(const BenchCommand& command) {
  if (!command.machine.empty()) return measure_machine(command);
  if (!command.profile.empty()) check_writable("--profile", command.profile);
  const auto users_environment = whole_environment();  // before that of the worker is prepared
  auto candidates = candidates_of(command);
  Supervisor supervisor;
  std::vector<std::string> checking{"check-layouts", command.config, "--ranks",
                                    std::to_string(command.ranks.value_or(1))};
  if (!command.layouts.empty()) checking.insert(checking.end(), {"--layouts", command.layouts});
  for (const auto& set : command.set) checking.insert(checking.end(), {"--set", set});
  const OwnedFolder folder(temporary_folder(), "trireme");
  if (folder.path().empty())
    throw ConfigError(fmt::format("{}: {}; set TMPDIR to a folder that can be written to", temporary_folder(),
                                  std::strerror(folder.error())));
  const auto into = folder.path() + "/result";
  if (!command.against.empty())
    candidates.push_back({.name = command.against,
                          .program = ranks::Program{.path = "/bin/sh",
                                                    .words = {"sh", "-c", script_of(command.against, into)},
                                                    .environment = users_environment}});
  if (const auto checked = check(supervisor, checking); checked.code != 0) return checked.code;

  const int rounds = candidates.size() > 1 ? 2 : 1;
  int failed = 0;
  for (int round = 1; round <= rounds; ++round)
    for (auto& candidate : candidates) {
      if (!output_error().empty()) return 0;  // standard output is closed
      if (round > 1 && candidate.medians.empty()) continue;
      const auto end = measure(supervisor, command, candidate, into, static_cast<double>(command.seconds) / rounds);
      if (end.stopped || (end.code != 0 && &candidate == &candidates.front())) return end.code;
      if (end.code != 0) failed = end.code;  // another layout may need less memory
      if (command.json) continue;
      put(fitted(fmt::format("round {} of {}: {}: {}", round, rounds, text::printable(candidate.name),
                             end.code != 0 ? fmt::format("did not run (exit code {})", end.code)
                                           : fmt::format("{:.1f} ms a step", 1e3 * candidate.medians.back()))) +
          "\n");
      std::fflush(stdout);
    }
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.medians.empty(); });
  std::vector<json> results;
  for (const auto& candidate : candidates) results.push_back(json_of(candidate));
  if (!command.profile.empty()) write_trace(results, command.profile);
  if (command.json) {
    put(json_text(json(results), 2) + "\n");
    return failed;
  }
  put("\n");
  print_steps(results);
  print_parts(results, "ms of a step", "split", {"data", "forward", "backward", "optimizer", "communication", "other"},
              1e3);
  print_parts(results, "MiB of the fullest rank", "memory",
              {"weights", "gradients", "optimizer", "average", "gathered", "activations", "peak", "process"},
              1.0 / (1 << 20));
  print_operators(results);
  print_blocks(results);
  return failed;
}

}  // namespace trireme::apps
