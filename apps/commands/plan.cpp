// trireme plan
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/plan_check.h"
#include "apps/commands/process.h"
#include "apps/commands/text_table.h"
#include "apps/layouts.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/comm/devices.h"
#include "core/plan/layout_search.h"
#include "core/plan/meta_kernels.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

constexpr bool kRunsCommands = false;  // a plan runs no command that is in a file

struct Planned {
  std::string name;
  plan::Forecast forecast{};       ///< with the problem of a layout that cannot run
  std::optional<double> memory{};  ///< bytes that a rank has for tensors, if they are known
  [[nodiscard]] bool fits() const { return static_cast<double>(forecast.memory.peak) <= *memory; }
};

/// "80GB", "24 GiB", "512MB" in bytes. @throws ConfigError
double memory_size(const std::string& text) {
  static const std::pair<const char*, double> units[] = {
      {"KiB", 1024.}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' '));
  for (const auto& [name, factor] : units)
    if (unit == name && number > 0) return number * factor;
  throw ConfigError(fmt::format("--memory {}: expected a size with its unit, such as 24GB or 80GiB", text));
}

/// What the command line says of the ranks' machine.
struct GivenMachine {
  std::optional<plan::Machine> machine{};
  std::optional<double> memory{};  ///< bytes for the tensors of a rank
};

GivenMachine given_machine(const PlanCommand& command) {
  GivenMachine out;
  if (!command.machine.empty()) out.machine = plan::Machine::load(command.machine);
  if (!command.memory.empty()) out.memory = memory_size(command.memory);
  return out;
}

/// The machine that is given, or that of the file; else without rates, the kind of device on which the run would
/// compute here.
plan::Machine machine_to_plan(const GivenMachine& given, const train::RunConfig& config) {
  if (given.machine) return *given.machine;
  if (!config.run.machine.empty()) return plan::machine_of(config);
  const bool cpu = config.run.device == "cpu" || (config.run.device == "auto" && comm::cuda_device_count() == 0);
  return {.name = "", .device = cpu ? "cpu" : "cuda", .ranks_per_host = 8};
}

/// The plan of one layout; an error of the layout alone is its problem.
Planned plan_one(const PlanCommand& command, const GivenMachine& given, const Layout* layout) {
  Planned out{.name = layout == nullptr ? command.paths.front() : layout->text};
  try {
    auto config = layout == nullptr ? load_config(command.paths.front(), command.set, kRunsCommands)
                                    : load_with_layout(command.paths.front(), command.set, *layout, kRunsCommands);
    const auto machine = machine_to_plan(given, config);
    out.memory = given.memory ? given.memory : machine.tensor_bytes();
    const auto launch = plan::planned_launch(machine, layout == nullptr ? command.ranks.value_or(1) : layout->ranks());
    tune_process(config, launch);
    out.forecast = plan::forecast(plan::prepare_to_plan(std::move(config), machine, launch), machine);
  } catch (const std::exception&) {
    if (layout == nullptr) throw;
    out.forecast.problem = verdict_on(std::current_exception()).message;
  }
  return out;
}

json json_of(const Planned& planned) {
  const auto& of = planned.forecast;
  json out{{"name", planned.name}};
  if (!of.problem.empty()) {
    out["problem"] = of.problem;
    return out;
  }
  out["ranks"] = of.ranks;
  out["plugin"] = of.plugin;
  out["layout"] = of.layout;
  out["peak_bytes"] = of.memory.peak;
  out["sent_bytes"] = of.sent_bytes();
  out["step_seconds"] = of.time.step > 0 ? json(of.time.step) : json();
  out["samples"] = of.samples;
  out["memory"] = {{"weights", of.memory.weights},     {"gradients", of.memory.gradients},
                   {"optimizer", of.memory.optimizer}, {"average", of.memory.average},
                   {"gathered", of.memory.gathered},   {"activations", of.memory.activations},
                   {"peak", of.memory.peak},           {"host", of.memory.host}};
  out["time"] = {{"compute", of.time.compute},
                 {"communication", of.time.communication},
                 {"idle", of.time.idle},
                 {"data", of.time.data}};
  out["messages"] = json::object();
  for (const auto& [key, entry] : of.messages)
    out["messages"][key.first][key.second] = {
        {"calls", entry.calls}, {"payload_bytes", entry.payload_bytes}, {"wire_bytes", entry.wire_bytes}};
  if (planned.memory) out["fits"] = planned.fits();
  return out;
}

using Rows = std::vector<std::vector<std::string>>;

void print_times(const std::vector<Planned>& all) {
  Rows rows{{"step", ">ranks", ">ms", ">compute", ">communication", ">idle", ">data", ">samples/s"}};
  for (const auto& [name, of, memory] : all)
    if (of.problem.empty() && of.time.step > 0)
      rows.push_back({name, std::to_string(of.ranks), fmt::format("{:.1f}", 1e3 * of.time.step),
                      fmt::format("{:.1f}", 1e3 * of.time.compute), fmt::format("{:.1f}", 1e3 * of.time.communication),
                      fmt::format("{:.1f}", 1e3 * of.time.idle), fmt::format("{:.1f}", 1e3 * of.time.data),
                      fmt::format("{:.1f}", of.samples / of.time.step)});
  if (rows.size() > 1) put(text_table(rows) + "\n");
}

void print_memory(const std::vector<Planned>& all) {
  Rows rows{{"MiB of the fullest rank", ">weights", ">gradients", ">optimizer", ">average", ">gathered", ">activations",
             ">peak", ">on the host"}};
  const bool has_limit = std::any_of(all.begin(), all.end(), [](const auto& each) { return each.memory.has_value(); });
  if (has_limit) rows.front().emplace_back("fits");
  const auto mib = [](std::int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); };
  for (const auto& each : all) {
    if (!each.forecast.problem.empty()) continue;
    const auto& m = each.forecast.memory;
    rows.push_back({each.name, mib(m.weights), mib(m.gradients), mib(m.optimizer), mib(m.average), mib(m.gathered),
                    mib(m.activations), mib(m.peak), mib(m.host)});
    if (has_limit) rows.back().emplace_back(!each.memory ? "" : each.fits() ? "yes" : "no");
  }
  if (rows.size() > 1) put(text_table(rows) + "\n");
}

void print_messages(const std::vector<Planned>& all) {
  std::set<std::string> axes;
  for (const auto& each : all)
    for (const auto& [key, entry] : each.forecast.messages) axes.insert(key.first);
  Rows rows{{"MB sent in a step by all ranks", ">all"}};
  for (const auto& axis : axes) rows.front().push_back(">" + axis);
  const auto mb = [](double bytes) { return fmt::format("{:.3f}", bytes / 1e6); };
  for (const auto& [name, of, memory] : all) {
    if (!of.problem.empty()) continue;
    auto& row = rows.emplace_back(std::vector<std::string>{name, mb(of.sent_bytes())});
    for (const auto& axis : axes) {
      double bytes = 0;
      for (const auto& [key, entry] : of.messages)
        if (key.first == axis) bytes += static_cast<double>(entry.wire_bytes);
      row.push_back(mb(bytes));
    }
  }
  if (rows.size() > 1 && !axes.empty()) put(text_table(rows) + "\n");
}

/// Lines for the user's file, in place of its [parallel] and [plugin.*].
std::string lines_of(const plan::Settings& settings) {
  std::map<std::string, std::string> sections;
  for (const auto& [name, value] : settings) {
    const auto dot = name.rfind('.');
    sections[name.substr(0, dot)] += fmt::format("{} = {}\n", name.substr(dot + 1), value);
  }
  std::string out;
  for (const auto& [section, lines] : sections) out += fmt::format("[{}]\n{}", section, lines);
  return out;
}

void print_candidates(const std::vector<plan::Candidate>& all, const std::string& title) {
  constexpr std::size_t kMostRows = 8;
  Rows rows{{title, ">ms", ">samples/s", ">compute", ">communication", ">idle", ">data", ">GiB", ">MB sent"}};
  for (const auto& [settings, of] : all) {
    if (rows.size() > kMostRows) break;
    const auto ms = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
    rows.push_back({plan::layout_text(settings), ms(of.time.step), fmt::format("{:.1f}", of.samples / of.time.step),
                    ms(of.time.compute), ms(of.time.communication), ms(of.time.idle), ms(of.time.data),
                    fmt::format("{:.3f}", static_cast<double>(of.memory.peak) / (1 << 30)),
                    fmt::format("{:.3f}", of.sent_bytes() / 1e6)});
  }
  if (rows.size() > 1) put(text_table(rows) + "\n");
}

/// Searches, and prints the best layout as lines of a file. @throws ConfigError when none can run or fits
int search_layouts(const PlanCommand& command) {
  const auto config = load_config(command.paths.front(), command.set, kRunsCommands);
  const auto given = given_machine(command);
  const auto machine = given.machine ? *given.machine : plan::machine_of(config);
  const auto memory = given.memory ? given.memory : machine.tensor_bytes();
  plan::SearchOptions options{.ranks = static_cast<int>(command.ranks.value_or(1)),
                              .most_seconds = static_cast<double>(command.seconds)};
  if (memory) options.memory = *memory;
  for (const auto& [key, entry] : config::section_of(config.root, "train").entries)
    if (entry.origin.line == 0) options.fixed.insert("train." + key);  // of --set
  auto set = config.root;
  std::erase_if(set.tables["parallel"].entries, [](const auto& each) { return each.second.origin.line != 0; });
  options.given = plan::set_in_parallel(set);
  tune_process(config, plan::planned_launch(machine, options.ranks));
  const auto begun = std::chrono::steady_clock::now();
  const auto found = plan::search_layouts(config, machine, options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
  if (command.json) {
    json out{{"ranks", options.ranks},
             {"machine", machine.name},
             {"forecasts", found.forecasts},
             {"complete", found.is_complete}};
    for (const auto& [key, all] : {std::pair{"fitting", &found.fitting}, {"too_large", &found.too_large}}) {
      out[key] = json::array();
      for (const auto& [settings, of] : *all) {
        auto& row = out[key].emplace_back(json_of({plan::layout_text(settings), of, memory}));
        row["settings"] = settings;
      }
    }
    put(json_text(out, 2) + "\n");
  } else {
    print_candidates(found.fitting, "fastest layouts");
    if (memory) print_candidates(found.too_large, fmt::format("needs more than {}", text::bytes(*memory)));
    put(fitted(fmt::format("{} in {:.1f} s{}, with the rates of {} ({}).", text::quantity(found.forecasts, "forecast"),
                           seconds.count(), found.is_complete ? "" : ", and not all layouts", machine.name,
                           machine.estimated ? "estimated from data sheets" : "measured")) +
        "\n");
  }
  if (found.fitting.empty() && !found.is_complete)
    throw ConfigError(fmt::format("no layout that fits was found in {}; allow more with --seconds, or more memory",
                                  text::quantity(command.seconds, "second")));
  if (found.fitting.empty()) throw ConfigError(plan::why_none(options, found));
  if (!command.json)
    put("The fastest, for the file, in place of its [parallel], [plugin.*] and these keys:\n\n" +
        lines_of(found.fitting.front().settings));
  return 0;
}

}  // namespace

int run(const PlanCommand& command) {
  if (command.check) return check_plans(command);
  const plan::MetaKernels kernels;
  if (command.search) return search_layouts(command);
  const auto given = given_machine(command);
  std::vector<Planned> all;
  if (command.layouts.empty()) {
    all.push_back(plan_one(command, given, nullptr));
  } else {
    for (const auto& layout : parse_layouts(command.layouts)) all.push_back(plan_one(command, given, &layout));
  }
  const bool one_runs =
      std::any_of(all.begin(), all.end(), [](const auto& each) { return each.forecast.problem.empty(); });
  const int code = one_runs ? 0 : static_cast<int>(ExitCode::config);
  if (command.json) {
    auto out = json::array();
    for (const auto& each : all) out.push_back(json_of(each));
    put(json_text(out, 2) + "\n");
    return code;
  }
  print_times(all);
  print_memory(all);
  print_messages(all);
  for (const auto& [name, of, memory] : all)
    if (!of.problem.empty()) put(fitted(fmt::format("{} cannot run: {}", name, of.problem)) + "\n");
  return code;
}

}  // namespace trireme::apps
