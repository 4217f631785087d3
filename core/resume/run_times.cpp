#include "core/resume/run_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/text.h"

namespace trireme::train {
namespace {

double seconds_of_step(const nlohmann::json& line) {
  const double rate = number_in(line, "samples_per_s");
  return rate > 0 ? number_in(line, "samples") / rate : 0;
}

}  // namespace

double number_in(const nlohmann::json& line, const char* key, double otherwise) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : otherwise;
}

bool is_in(const nlohmann::json& line, const char* key, const char* text) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() && found->get_ref<const std::string&>() == text;
}

void RunTimes::add(const nlohmann::json& line) {
  end = std::max(end, number_in(line, "time"));
  const bool first = begin == 0;
  if (first) begin = end;
  if (is_in(line, "kind", "step")) {
    const double seconds = seconds_of_step(line), waited = std::clamp(number_in(line, "data_wait"), 0.0, 1.0) * seconds;
    data += waited;
    training += seconds - waited;
    if (first) begin -= seconds;  // the file of a version without starts
  } else if (is_in(line, "kind", "eval")) {
    evaluation += number_in(line, "seconds");
  } else if (is_in(line, "event", "save")) {
    saving += number_in(line, "held_s");
  } else if (is_in(line, "event", "wait")) {
    training += number_in(line, "seconds");
  } else if (is_in(line, "event", kStartEvent)) {
    const double here = number_in(line, "start_up_s"), before = number_in(line, "idle_s") + number_in(line, "lost_s");
    if (first) begin = number_in(line, "time") - here - before;  // what is before has left no other line
    ++starts;
    start_up += here;
    idle += number_in(line, "idle_s");
    lost += number_in(line, "lost_s");
  } else if (is_in(line, "event", "rollback")) {
    lost += number_in(line, "lost_s");
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
