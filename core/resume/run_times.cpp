#include "core/resume/run_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/json_members.h"
#include "core/base/text.h"

namespace trireme::train {
namespace {

double seconds_in(const nlohmann::json& line, const char* key) { return number_in(line, key).value_or(0); }

double seconds_of_step(const nlohmann::json& line) {
  const double rate = number_in(line, "samples_per_s").value_or(0);
  return rate > 0 ? number_in(line, "samples").value_or(0) / rate : 0;
}

}  // namespace

void RunTimes::add(const nlohmann::json& line) {
  end = std::max(end, seconds_in(line, "time"));
  const bool first = begin == 0;
  if (first) begin = end;
  if (is_in(line, "kind", "step")) {
    const double seconds = seconds_of_step(line),
                 waited = std::clamp(number_in(line, "data_wait").value_or(0), 0.0, 1.0) * seconds;
    data += waited;
    training += seconds - waited;
    if (first) begin -= seconds;  // the file of a version without starts
  } else if (is_in(line, "kind", "eval")) {
    evaluation += seconds_in(line, "seconds");
  } else if (is_in(line, "event", "save")) {
    saving += seconds_in(line, "held_s");
  } else if (is_in(line, "event", "wait")) {
    training += seconds_in(line, "seconds");
  } else if (is_in(line, "event", kStartEvent)) {
    const double here = seconds_in(line, "start_up_s"),
                 before = seconds_in(line, "idle_s") + seconds_in(line, "lost_s");
    if (first) begin = seconds_in(line, "time") - here - before;  // what is before has left no other line
    ++starts;
    start_up += here;
    idle += seconds_in(line, "idle_s");
    lost += seconds_in(line, "lost_s");
  } else if (is_in(line, "event", "rollback")) {
    lost += seconds_in(line, "lost_s");
  }
}

double RunTimes::other() const {
  return std::max(0.0, wall() - training - data - start_up - evaluation - saving - lost - idle);
}

std::vector<std::pair<const char*, double>> RunTimes::parts() const {
  return {{"training", training}, {"data", data}, {"start-up", start_up}, {"evaluation", evaluation},
          {"saving", saving},     {"lost", lost}, {"idle", idle},         {"other", other()}};
}

std::string RunTimes::text() const {
  if (wall() <= 0) return "";
  const auto percent = [this](double seconds) { return 100 * seconds / wall(); };
  auto out = fmt::format("{:.1f} % of {} trained", percent(training), text::clock(wall()));
  const char* before = "; ";
  for (const auto& [name, seconds] : parts()) {
    if (name == parts().front().first || percent(seconds) < 0.05) continue;
    out += fmt::format("{}{} {:.1f} %", std::exchange(before, ", "), name, percent(seconds));
  }
  return out;
}

double lost_with(const nlohmann::json& line) {
  RunTimes times;
  times.add(line);
  return times.training + times.data + times.evaluation + times.saving +
         (is_in(line, "event", "rollback") ? times.lost : 0);
}

nlohmann::json to_json(const RunTimes& times) {
  nlohmann::json out{{"goodput", times.goodput()}, {"wall", times.wall()}, {"starts", times.starts}};
  for (const auto& [name, seconds] : times.parts()) out[name] = seconds;
  return out;
}

}  // namespace trireme::train
