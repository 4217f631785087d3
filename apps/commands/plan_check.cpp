#include "apps/commands/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "apps/commands/text_table.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_members.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"

namespace trireme::apps {
namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

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

}  // namespace

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

}  // namespace trireme::apps
