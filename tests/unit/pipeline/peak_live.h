// The microbatches that a schedule keeps alive on each rank.
#pragma once

#include <algorithm>
#include <vector>

#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

/// When a microbatch stops counting as live on a rank.
enum class LiveUntil { weight_gradient, input_gradient };

/// The largest number of (chunk, microbatch) pairs that each rank holds at once, counted from their forward on. It
/// depends only on the order. A pair holds the activations of one chunk, 1 / chunks of those of a rank.
inline std::vector<int> peak_live(const Schedule& schedule, LiveUntil until = LiveUntil::weight_gradient) {
  std::vector<int> peaks;
  for (const auto& actions : schedule.actions) {
    int live = 0, peak = 0;
    for (const auto& action : actions) {
      if (action.op == Op::forward) peak = std::max(peak, ++live);
      const bool ends =
          until == LiveUntil::weight_gradient ? makes_weight_gradient(action.op) : makes_input_gradient(action.op);
      if (ends) --live;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace trireme::pipeline
