// StepClock: how long the steps of a training take on this rank, and how much of that it waited for data and in
// communication. A step lasts from the end of the step before it, or from start(); what is done in a pause(), such as a
// part of a save beside the training, belongs to no step.
//
// On CPU ranks communication is the time in which its operations were waited for (core/comm/comm_stats.h). On a GPU the
// host does not wait, and it is 0.
#pragma once

#include <chrono>

#include "core/booster/boosted.h"

namespace trireme::train {

/// Of a step, on this rank, in seconds. What remains of the whole is computation, on CPU ranks.
struct StepTime {
  double seconds = 0, data = 0, communication = 0;  ///< the whole, and the waits within it
};

class StepClock {
 public:
  StepClock() { start(); }
  /// The next step begins now: what came before belongs to none.
  void start();
  /// A step ends, and the next one begins. `data`: seconds that it waited for its data.
  StepTime end_step(double data);
  /// Seconds since the step in progress began, or since the last one ended.
  [[nodiscard]] double elapsed() const;

  /// While the guard exists, the time belongs to no step.
  ScopeGuard pause();

 private:
  std::chrono::steady_clock::time_point begin_;
  std::chrono::nanoseconds waited_{};  ///< in communication, up to begin_
};

}  // namespace trireme::train
