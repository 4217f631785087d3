// Simulator: what a schedule costs, from what its parts cost.
//
// A rank computes one action at a time, in its order, and starts it as soon as it is free and the action's input is
// there. A message takes its seconds beside computing and beside other messages; between two stages of one rank there
// is none. Seconds throughout. Linear in the number of actions.
#pragma once

#include <vector>

#include "pipeline/schedule/schedule.h"

namespace trireme::pipeline {

/// Seconds of one microbatch through one stage: one value for all stages, or one a stage.
struct Costs {
  std::vector<double> forward{1}, backward_input{1}, backward_weight{1};  ///< `backward` costs the last two together
  double message = 0;                                                     ///< an activation or a gradient, either way
};

struct Span {
  double start, end;
};

struct Timeline {
  double step = 0;                       ///< from the first start to the last end, of all ranks
  double busy = 0;                       ///< computing, summed over the ranks
  std::vector<std::vector<Span>> spans;  ///< of each rank's actions, in their order

  /// Seconds in which ranks do nothing, summed over them.
  [[nodiscard]] double idle() const { return step * static_cast<double>(spans.size()) - busy; }
  /// The bubble as the share of the step that is idle: (p-1)/(m+p-1) for 1f1b with equal stages.
  [[nodiscard]] double idle_of_step() const { return idle() / (step * static_cast<double>(spans.size())); }
  /// The bubble as idle over computing, what the step lasts longer than it had to: (p-1)/m for 1f1b with equal stages.
  [[nodiscard]] double idle_of_ideal() const { return idle() / busy; }
};

/// @throws LogicError when the costs do not fit the stages, or the schedule cannot run to its end (see the verifier).
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace trireme::pipeline
