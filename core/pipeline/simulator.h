// Simulator: computes the duration of a schedule from the durations of its actions.
//
// A rank computes one action at a time, in order, and starts it as soon as the rank is free and the input of the action
// is available. A message overlaps with computation and with other messages; between two stages of one rank there is
// none. All times are in seconds. The run time is linear in the number of actions.
#pragma once

#include <vector>

#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

/// Seconds of one microbatch in one stage: one value for all stages, or one per stage.
struct Costs {
  std::vector<double> forward{1}, backward_input{1}, backward_weight{1};  ///< `backward` costs the sum of the last two
  double message = 0;                                                     ///< of an activation or a gradient
};

struct Span {
  double start, end;
};

struct Timeline {
  double step = 0;                       ///< from the first start to the last end over all ranks
  double busy = 0;                       ///< time spent computing, summed over the ranks
  std::vector<std::vector<Span>> spans;  ///< of each rank's actions, in order

  /// Idle time, summed over the ranks.
  [[nodiscard]] double idle() const { return step * static_cast<double>(spans.size()) - busy; }
  /// The bubble as the idle fraction of the step: (p-1)/(m+p-1) for 1f1b with equal stages.
  [[nodiscard]] double idle_of_step() const { return idle() / (step * static_cast<double>(spans.size())); }
};

/// @throws LogicError when the costs do not match the stages, or the schedule cannot complete (see the verifier).
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace trireme::pipeline
