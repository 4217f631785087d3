#include "apps/front/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/front/launch.h"
#include "apps/layouts.h"
#include "core/base/error.h"

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;

/// A folder that is gone afterwards. Records are as large as the model, a step.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / fmt::format("trireme-verify-{}", getpid())) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error)
      throw ConfigError(fmt::format("{}: {}; set TMPDIR to a folder with room", path_.string(), error.message()));
  }
  ~Scratch() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] std::string of(std::size_t layout) const { return (path_ / std::to_string(layout)).string(); }

 private:
  fs::path path_;
};

/// How far a layout may be from the first. Beyond float64 the order of sums shows in every number.
double bound_of(const std::string& precision) {
  if (precision == "fp64") return 1e-9;
  return precision == "fp32" ? 1e-4 : 5e-2;
}

struct Row {
  double loss, gradient, weight;
  std::string gradient_of, weight_of;
};

Row read(const std::string& folder) {
  std::ifstream file(folder + "/difference.json");
  const auto told = nlohmann::json::parse(file);
  const auto value = [&](const char* key) {  // JSON knows no infinity
    return told.at(key).is_null() ? INFINITY : told.at(key).get<double>();
  };
  return {value("loss"), value("gradient"), value("weight"), told.at("gradient_of"), told.at("weight_of")};
}

std::string verdict_on(const Row& row, double bound) {
  if (!(row.weight <= bound)) return fmt::format("differs: {}", row.weight_of);
  if (!(row.gradient <= bound)) return fmt::format("differs: gradient of {}", row.gradient_of);
  return row.loss <= bound ? "same" : "differs: the loss";
}

std::vector<std::string> set_of(const VerifyCommand& command) {
  auto set = command.set;
  set.push_back("train.precision=" + config::to_toml(command.precision));
  return set;
}

std::vector<std::string> words_of(const VerifyCommand& command, const Layout& layout, const Scratch& scratch,
                                  std::size_t number) {
  std::vector<std::string> words{
      "record", command.config,     "--layout",  layout.text,  "--steps", std::to_string(command.steps),
      "--into", scratch.of(number), "--against", scratch.of(0)};
  for (const auto& set : set_of(command)) words.insert(words.end(), {"--set", set});
  return words;
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace

int verify(const VerifyCommand& command) {
  const auto layouts = parse_layouts(command.layouts);
  std::int64_t threads = 0;
  for (const auto& layout : layouts) threads = load_with_layout(command.config, set_of(command), layout).run.threads;
  const double bound = bound_of(command.precision);
  const Scratch scratch;
  std::size_t width = 6;
  for (const auto& layout : layouts) width = std::max(width, layout.text.size());
  say(fmt::format("{}: {} steps in {}, and the largest difference from \"{}\" (bound {:g})", command.config,
                  command.steps, command.precision, layouts.front().text, bound));
  say(fmt::format("{:<{}}  ranks  loss     gradient  weight", "layout", width));
  std::size_t same = 0;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto& layout = layouts[i];
    const int code = run_ranks(layout.ranks(), threads, words_of(command, layout, scratch, i));
    if (code > 128 || (code != 0 && i == 0)) return code;
    const auto begin = fmt::format("{:<{}}  {:<5}", layout.text, width, layout.ranks());
    if (code != 0) {
      say(fmt::format("{}  did not run (exit code {})", begin, code));
      continue;
    }
    const auto row = read(scratch.of(i));
    const auto verdict = verdict_on(row, bound);
    if (verdict == "same") ++same;
    say(i == 0
            ? fmt::format("{}  the first", begin)
            : fmt::format("{}  {:<7.1e}  {:<8.1e}  {:<7.1e}  {}", begin, row.loss, row.gradient, row.weight, verdict));
    std::error_code none;
    if (i > 0) fs::remove_all(scratch.of(i), none);
  }
  const bool all = same == layouts.size();
  say(all ? fmt::format("all {} layouts compute the same", same)
          : fmt::format("{} of {} layouts compute the same", same, layouts.size()));
  return all ? 0 : 1;
}

}  // namespace trireme::apps
