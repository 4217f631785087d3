// trireme plan
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/commands/text_table.h"
#include "apps/layouts.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_members.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/plan/forecast.h"
#include "core/plan/meta_kernels.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

struct Planned {
  std::string name;
  plan::Forecast forecast{};
  std::string problem{};  ///< why this layout cannot run; "": it can
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

/// Without rates: the kind of device on which the run would compute here.
plan::Machine machine_of(const train::RunConfig& config) {
  const bool cpu = config.run.device == "cpu" || (config.run.device == "auto" && comm::cuda_device_count() == 0);
  plan::Machine machine{.name = "", .device = cpu ? "cpu" : "cuda"};
  machine.ranks_per_host = 8;
  return machine;
}

/// The plan of one layout; an error of the layout alone is its problem.
Planned plan_one(const PlanCommand& command, const std::optional<plan::Machine>& given, const Layout* layout) {
  Planned out{.name = layout == nullptr ? command.paths.front() : layout->text};
  const auto ranks = layout == nullptr ? command.ranks.value_or(1) : layout->ranks();
  try {
    auto config = layout == nullptr ? load_config(command.paths.front(), command.set)
                                    : load_with_layout(command.paths.front(), command.set, *layout);
    const auto machine = given ? *given : machine_of(config);
    LaunchInfo info{.launcher = Launcher::launch, .rank = 0, .size = static_cast<int>(ranks)};
    info.local_size = static_cast<int>(std::min<std::int64_t>(ranks, machine.ranks_per_host));
    config.run.device = "cpu";  // this process has no more
    tune_process(config, info);
    out.forecast = plan::forecast(train::prepare_training(std::move(config), info, Log(/*rank=*/1)), machine);
  } catch (const std::exception&) {
    if (layout == nullptr) throw;
    out.problem = verdict_on(std::current_exception()).message;
  }
  return out;
}

json json_of(const Planned& planned, std::optional<double> memory) {
  const auto& of = planned.forecast;
  json out{{"name", planned.name}};
  if (!planned.problem.empty()) {
    out["problem"] = planned.problem;
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
  out["time"] = {{"compute", of.time.compute}, {"communication", of.time.communication}, {"idle", of.time.idle}};
  out["messages"] = json::object();
  for (const auto& [key, entry] : of.messages)
    out["messages"][key.first][key.second] = {
        {"calls", entry.calls}, {"payload_bytes", entry.payload_bytes}, {"wire_bytes", entry.wire_bytes}};
  if (memory) out["fits"] = static_cast<double>(of.memory.peak) <= *memory;
  return out;
}

using Rows = std::vector<std::vector<std::string>>;

void print_times(const std::vector<Planned>& all) {
  Rows rows{{"step", ">ranks", ">ms", ">compute", ">communication", ">idle", ">samples/s"}};
  for (const auto& [name, of, problem] : all)
    if (problem.empty() && of.time.step > 0)
      rows.push_back({name, std::to_string(of.ranks), fmt::format("{:.1f}", 1e3 * of.time.step),
                      fmt::format("{:.1f}", 1e3 * of.time.compute), fmt::format("{:.1f}", 1e3 * of.time.communication),
                      fmt::format("{:.1f}", 1e3 * of.time.idle), fmt::format("{:.1f}", of.samples / of.time.step)});
  if (rows.size() > 1) put(text_table(rows) + "\n");
}

void print_memory(const std::vector<Planned>& all, std::optional<double> memory) {
  Rows rows{{"MiB of the fullest rank", ">weights", ">gradients", ">optimizer", ">average", ">gathered", ">activations",
             ">peak", ">on the host"}};
  if (memory) rows.front().emplace_back("fits");
  const auto mib = [](std::int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); };
  for (const auto& [name, of, problem] : all) {
    if (!problem.empty()) continue;
    const auto& m = of.memory;
    rows.push_back({name, mib(m.weights), mib(m.gradients), mib(m.optimizer), mib(m.average), mib(m.gathered),
                    mib(m.activations), mib(m.peak), mib(m.host)});
    if (memory) rows.back().emplace_back(static_cast<double>(m.peak) <= *memory ? "yes" : "no");
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
  for (const auto& [name, of, problem] : all) {
    if (!problem.empty()) continue;
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

/// The value at a part of the sorted values; "-" without any.
std::string percentile_text(std::vector<double> values, double at) {
  if (values.empty()) return "-";
  std::sort(values.begin(), values.end());
  const auto rank = std::ceil(at * static_cast<double>(values.size()));
  return fmt::format("{:.2f}", values[static_cast<std::size_t>(rank) - 1]);
}

/// The run's summary. @throws ConfigError when it has none
json summary_of(const std::string& run) {
  const auto file = run + "/summary.json";
  if (!std::filesystem::exists(file))
    throw ConfigError(fmt::format("{}: no run that has ended; name the folder of a run with summary.json", run));
  const auto summary = parse_json_or_null(read_file(file));
  if (!summary.is_object()) throw ConfigError(fmt::format("{}: it is no JSON object; train the run again", file));
  return summary;
}

/// The table of errors of runs that have ended.
int check_plans(const PlanCommand& command) {
  struct Quantity {
    const char* key;
    double scale;  ///< of the numbers that are shown
    int digits;
    std::vector<double> errors{};  ///< of all runs, in percent
  };
  std::array<Quantity, 3> quantities{
      {{"peak_bytes", 1.0 / (1 << 20), 1}, {"sent_bytes", 1e-6, 3}, {"step_seconds", 1e3, 1}}};
  auto all = json::array();
  Rows rows{{"run", ">MiB", ">planned", ">error %", ">MB sent", ">planned", ">error %", ">ms", ">planned", ">error %"}};
  for (const auto& path : command.paths) {
    const auto summary = summary_of(path);
    const auto value_of = [&](const char* part, const char* key) {
      const auto found = summary.find(part);
      return found != summary.end() && found->is_object() ? number_in(*found, key) : std::nullopt;
    };
    auto& row = rows.emplace_back(std::vector<std::string>{path});
    json found{{"run", path}};
    for (auto& [key, scale, digits, errors] : quantities) {
      const auto planned = value_of("plan", key), measured = value_of("measured", key);
      std::optional<double> error;
      if (planned && measured && *measured > 0) error = 100 * (*planned / *measured - 1);
      if (planned && measured && *measured == 0 && *planned == 0) error = 0;
      if (error) errors.push_back(std::abs(*error));
      for (const auto& value : {measured, planned})
        row.push_back(value ? fmt::format("{:.{}f}", *value * scale, digits) : "-");
      row.push_back(error ? fmt::format("{:+.2f}", *error) : "-");
      found[key] = {{"planned", planned ? json(*planned) : json()},
                    {"measured", measured ? json(*measured) : json()},
                    {"error", error ? json(*error / 100) : json()}};
    }
    all.push_back(std::move(found));
  }
  if (command.json) {
    put(json_text(all, 2) + "\n");
    return 0;
  }
  for (const auto& [name, at] : {std::pair{"median of the errors", 0.5}, {"95th percentile", 0.95}}) {
    auto& row = rows.emplace_back(std::vector<std::string>{name});
    for (const auto& of : quantities) row.insert(row.end(), {"", "", percentile_text(of.errors, at)});
  }
  put(text_table(rows));
  return 0;
}

}  // namespace

int run(const PlanCommand& command) {
  if (command.check) return check_plans(command);
  std::optional<plan::Machine> machine;
  if (!command.machine.empty()) machine = plan::Machine::load(command.machine);
  std::optional<double> memory;
  if (!command.memory.empty())
    memory = memory_size(command.memory);
  else if (machine && machine->memory_gb)
    memory = 1e9 * (*machine->memory_gb - machine->process_gb);
  const plan::MetaKernels kernels;
  std::vector<Planned> all;
  if (command.layouts.empty()) {
    all.push_back(plan_one(command, machine, nullptr));
  } else {
    for (const auto& layout : parse_layouts(command.layouts)) all.push_back(plan_one(command, machine, &layout));
  }
  if (command.json) {
    auto out = json::array();
    for (const auto& each : all) out.push_back(json_of(each, memory));
    put(json_text(out, 2) + "\n");
    return 0;
  }
  print_times(all);
  print_memory(all, memory);
  print_messages(all);
  for (const auto& each : all)
    if (!each.problem.empty()) put(fitted(fmt::format("{} cannot run: {}", each.name, each.problem)) + "\n");
  return 0;
}

}  // namespace trireme::apps
