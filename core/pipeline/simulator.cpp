#include "core/pipeline/simulator.h"

#include <algorithm>

#include "core/base/error.h"

namespace trireme::pipeline {
namespace {

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs) : schedule_(schedule), costs_(costs) {
    for (const auto* part : {&costs.forward, &costs.backward_input, &costs.backward_weight})
      TRIREME_CHECK(part->size() == 1 || part->size() == static_cast<std::size_t>(schedule.stages()),
                    "got costs of {} stages for a schedule of {}", part->size(), schedule.stages());
    made_at_.assign(schedule.items(), kNotYet);
    for (const auto& actions : schedule.actions) out_.spans.emplace_back().reserve(actions.size());
  }

  Timeline run() {
    // A rank advances until it lacks an input; the rank that produces that input calls it again. So no queue of times
    // is needed.
    for (int rank = 0; rank < schedule_.ranks; ++rank) called_.push_back(rank);
    while (!called_.empty()) {
      const int rank = called_.back();
      called_.pop_back();
      advance(rank);
    }
    for (std::size_t rank = 0; rank < out_.spans.size(); ++rank)
      TRIREME_CHECK(out_.spans[rank].size() == schedule_.actions[rank].size(),
                    "schedule {} deadlocks: rank {} waits at action {}", schedule_.name, rank, out_.spans[rank].size());
    return std::move(out_);
  }

 private:
  static constexpr double kNotYet = -1;

  void advance(int rank) {
    const auto& actions = schedule_.actions[static_cast<std::size_t>(rank)];
    auto& spans = out_.spans[static_cast<std::size_t>(rank)];
    while (spans.size() < actions.size()) {
      const auto& action = actions[spans.size()];
      const int source = source_stage(schedule_, rank, action);
      double start = spans.empty() ? 0 : spans.back().end;
      if (source >= 0) {
        const double made = made_at_[schedule_.item(action.op, source, action.microbatch)];
        if (made == kNotYet) return;
        start = std::max(start, made + message(rank, source));
      }
      finish(rank, action, start);
    }
  }

  void finish(int rank, const Action& action, double start) {
    const int stage = schedule_.stage_of(rank, action.chunk);
    const double cost = seconds(action.op, stage);
    out_.spans[static_cast<std::size_t>(rank)].push_back({start, start + cost});
    out_.busy += cost;
    out_.step = std::max(out_.step, start + cost);
    const int target = target_stage(schedule_, rank, action);
    if (target < 0) return;
    made_at_[schedule_.item(action.op, stage, action.microbatch)] = start + cost;
    const int waiting = schedule_.location_of(target).rank;
    if (waiting != rank) called_.push_back(waiting);
  }

  [[nodiscard]] double message(int rank, int source) const {
    return schedule_.location_of(source).rank == rank ? 0 : costs_.message;
  }

  [[nodiscard]] double seconds(Op op, int stage) const {
    const auto of = [&](const std::vector<double>& part) {
      return part.size() == 1 ? part[0] : part[static_cast<std::size_t>(stage)];
    };
    if (op == Op::forward) return of(costs_.forward);
    return (makes_input_gradient(op) ? of(costs_.backward_input) : 0) +
           (makes_weight_gradient(op) ? of(costs_.backward_weight) : 0);
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<double> made_at_;  ///< by item: when it was produced
  std::vector<int> called_;      ///< ranks whose missing input may be available now
  Timeline out_;
};

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) { return Simulation(schedule, costs).run(); }

}  // namespace trireme::pipeline
