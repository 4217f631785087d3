#include "apps/launcher/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/config_file.h"
#include "apps/launcher/worker.h"
#include "apps/layouts.h"
#include "apps/report.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/owned_folder.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

/// How much a layout may differ from the first one. Below float64 every number depends on the order of sums, and Adam's
/// first steps amplify differences in the smallest ones.
struct Bounds {
  double loss, gradient, weight;
};
Bounds bounds_of(const std::string& precision) {
  if (precision == "fp64") return {1e-9, 1e-9, 1e-9};
  if (precision == "fp32") return {1e-5, 1e-3, 1e-2};
  return {2e-2, 2e-1, 1e-1};
}

struct Row {
  double loss, gradient, weight;
  std::string gradient_of, weight_of;
};

Row read(const std::string& folder) {
  std::ifstream file(folder + "/difference.json");
  const auto found = parse_json(std::string{std::istreambuf_iterator<char>(file), {}});
  const auto value = [&](const char* key) {  // JSON has no infinity
    return found.at(key).is_null() ? INFINITY : found.at(key).get<double>();
  };
  return {value("loss"), value("gradient"), value("weight"), found.at("gradient_of"), found.at("weight_of")};
}

std::string verdict_on(const Row& row, const Bounds& bounds) {
  if (!(row.weight <= bounds.weight)) return fmt::format("differs: {}", row.weight_of);
  if (!(row.gradient <= bounds.gradient)) return fmt::format("differs: gradient of {}", row.gradient_of);
  return row.loss <= bounds.loss ? "same" : "differs: the loss";
}

std::vector<std::string> set_of(const VerifyCommand& command) {
  auto set = command.set;
  set.push_back("train.precision=" + config::to_toml(command.precision));
  return set;
}

std::vector<std::string> arguments_of(const VerifyCommand& command, const Layout& layout, const std::string& into,
                                      const std::string& against) {
  std::vector<std::string> arguments{
      "record", command.config, "--layout",  layout.text, "--steps", std::to_string(command.steps),
      "--into", into,           "--against", against};
  for (const auto& set : set_of(command)) arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

/// @throws ConfigError for a --set of what verify has an option for
void check_sets(const VerifyCommand& command) {
  for (const auto& set : command.set)
    for (const auto& [key, instead] :
         {std::pair{"parallel.", "--layouts"}, {"plugin.", "--layouts"}, {"train.precision=", "--precision"}})
      if (set.rfind(key, 0) == 0)
        throw ConfigError(fmt::format("--set {}: use {} for this in verify; remove it", set, instead));
}

void say(const std::string& line) {
  put(fitted(line.substr(0, line.find_last_not_of(' ') + 1)) + "\n");
  std::fflush(stdout);
}

}  // namespace

int verify(const VerifyCommand& command) {
  const auto layouts = parse_layouts(command.layouts);
  if (layouts.size() < 2)
    throw ConfigError(
        "--layouts: give two or more layouts, separated by semicolons: \"dp=1; dp=2; tp=2; dp=2,tp=2,zero=1\"");
  check_sets(command);
  (void)read_config(command.config);  // an error in the file is no layout's
  std::vector<std::int64_t> threads;
  for (const auto& layout : layouts) threads.push_back(threads_of_layout(command.config, set_of(command), layout));
  Supervisor supervisor;
  std::vector<std::string> checking{"check-layouts", command.config, "--layouts", command.layouts};
  for (const auto& set : set_of(command)) checking.insert(checking.end(), {"--set", set});
  if (const auto checked = check(supervisor, checking); checked.code != 0) return checked.code;
  const auto bounds = bounds_of(command.precision);
  // Each recorded step is as large as the model.
  const OwnedFolder folder(temporary_folder(), "trireme");
  if (folder.path().empty())
    throw ConfigError(
        fmt::format("{}: {}; set TMPDIR to a folder that can be written to and has space for the model's "
                    "weights and gradients",
                    temporary_folder(), std::strerror(folder.error())));
  const auto record_of = [&](std::size_t number) { return fmt::format("{}/{}", folder.path(), number); };
  std::size_t width = 6;
  for (const auto& layout : layouts) width = std::max(width, layout.text.size());
  const auto line = [&](const auto& name, const auto& ranks, const auto& loss, const auto& gradient, const auto& weight,
                        const auto& rest) {
    say(fmt::format("{:<{}}  {:<5}  {:<7}  {:<8}  {:<7}  {}", name, width, ranks, loss, gradient, weight, rest));
  };
  const auto small = [](double value) { return fmt::format("{:.1e}", value); };
  say(fmt::format("{}: {} in {}, and the largest differences from \"{}\"", command.config,
                  text::quantity(command.steps, "step"), command.precision, layouts.front().text));
  line("layout", "ranks", "loss", "gradient", "weight", "");
  line("", "", small(bounds.loss), small(bounds.gradient), small(bounds.weight), "tolerance");
  std::size_t same = 0;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto& layout = layouts[i];
    if (!output_error().empty()) return 0;  // standard output is closed
    const auto end =
        run_ranks(supervisor, layout.ranks(), threads[i], arguments_of(command, layout, record_of(i), record_of(0)));
    if (end.stopped || (end.code != 0 && i == 0)) return end.code;
    if (end.code != 0) {
      line(layout.text, layout.ranks(), "", "", "", fmt::format("did not run (exit code {})", end.code));
      continue;
    }
    const auto row = read(record_of(i));
    const auto verdict = verdict_on(row, bounds);
    if (verdict == "same") ++same;
    if (i == 0)
      line(layout.text, layout.ranks(), "", "", "", "reference");
    else
      line(layout.text, layout.ranks(), small(row.loss), small(row.gradient), small(row.weight), verdict);
    std::error_code none;
    if (i > 0) std::filesystem::remove_all(record_of(i), none);
  }
  const bool all = same == layouts.size();
  say(all ? fmt::format("all {} layouts compute the same", same)
          : fmt::format("{} of {} layouts compute the same", same, layouts.size()));
  return all ? 0 : 1;
}

}  // namespace trireme::apps
