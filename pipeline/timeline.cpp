#include "pipeline/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/json_parse.h"
#include "core/comm/host_values.h"
#include "core/pipeline/picture.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {
namespace {

/// Gathers the events of all ranks on rank 0 of the pipeline: events[r] are those of rank r. Empty on the others.
std::vector<std::vector<Event>> gather(const std::vector<Event>& mine, const comm::Group& line) {
  auto entries = nlohmann::json::array();
  for (const auto& [action, stage, begin, end] : mine)
    entries.push_back({static_cast<int>(action.op), action.chunk, action.microbatch, stage, begin, end});
  std::vector<std::vector<Event>> all;
  for (const auto& text : comm::gather_text(line, entries.dump())) {
    auto& events = all.emplace_back();
    for (const auto& e : parse_json(text))
      events.push_back({{static_cast<Op>(e.at(0).get<int>()), e.at(1), e.at(2)}, e.at(3), e.at(4), e.at(5)});
  }
  return all;
}

/// The mean duration of each stage's actions.
Costs measured_costs(const std::vector<std::vector<Event>>& events, int stages) {
  std::vector<double> forward(static_cast<std::size_t>(stages)), input(forward), weight(forward), count(forward);
  for (const auto& of_rank : events)
    for (const auto& event : of_rank) {
      const auto s = static_cast<std::size_t>(event.stage);
      const double seconds = event.end - event.begin;
      if (event.action.op == Op::forward) ++count[s];
      // A backward that is not split counts as weight gradient: the simulator adds the two.
      (event.action.op == Op::forward ? forward : event.action.op == Op::backward_input ? input : weight)[s] += seconds;
    }
  Costs costs{forward, input, weight, 0};
  for (auto* part : {&costs.forward, &costs.backward_input, &costs.backward_weight})
    for (std::size_t s = 0; s < part->size(); ++s) (*part)[s] /= std::max(1.0, count[s]);
  return costs;
}

}  // namespace

std::string describe(const Event& event) {
  return fmt::format("{} of microbatch {}, stage {}", name(event.action.op), event.action.microbatch, event.stage);
}

std::string picture_of(const Plan& plan, const std::vector<Event>& events, const comm::Group& line, int columns) {
  const auto all = gather(events, line);
  if (all.empty()) return "";
  double begin = 1e300, end = 0;
  int microbatches = 0;
  for (const auto& of_rank : all) {
    if (of_rank.empty()) return "";
    for (const auto& event : of_rank) microbatches = std::max(microbatches, event.action.microbatch + 1);
    begin = std::min(begin, of_rank.front().begin);
    end = std::max(end, of_rank.back().end);
  }
  const auto schedule = make_schedule(plan, line.size(), microbatches);
  Timeline timeline;
  timeline.step = end - begin;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != schedule.actions[rank].size()) return "";
    auto& spans = timeline.spans.emplace_back();
    for (const auto& event : all[rank]) {
      spans.push_back({event.begin - begin, event.end - begin});
      timeline.busy += event.end - event.begin;
    }
  }
  const auto simulated = simulate(schedule, measured_costs(all, schedule.stages()));
  const auto equal = simulate(schedule, {});
  return draw(schedule, timeline, {.columns = columns, .ranks = line.ranks()}) +
         fmt::format(
             "measured: ranks are idle {:.1f} % of the step; simulated with these stage times and free messages: "
             "{:.1f} %; with equal stages and F = B = W: {:.1f} %\n",
             100 * timeline.idle_of_step(), 100 * simulated.idle_of_step(), 100 * equal.idle_of_step());
}

}  // namespace trireme::pipeline
