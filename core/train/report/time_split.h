// TimeSplit: what the steps of a training take their time for, on this rank.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/comm/flight/record.h"
#include "core/train/report/step_clock.h"

namespace trireme::train {

/// A point in time of the device's current stream.
c10::Event mark_on(c10::Device device);
/// @pre the device has reached both
double seconds_between(const c10::Event& begin, const c10::Event& end);

/// Watches forward and backward passes and updates: on a CPU rank without the waits for other ranks, on a GPU the time
/// of the device. One at a time in a process: others have no steps.
class TimeSplit {
 public:
  explicit TimeSplit(c10::Device device);
  ~TimeSplit();
  TimeSplit(const TimeSplit&) = delete;
  TimeSplit& operator=(const TimeSplit&) = delete;

  /// What comes before its begin belongs to no step: evaluations have passes, too.
  void begin_step();
  void end_step(const StepTime& time);
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// Seconds of a step, mean: {data, forward, backward, optimizer, communication, other}. On CPU ranks communication is
  /// what this rank waited for others, and no part of the rest. On a GPU it is null, and a part of those that it delays
  /// there; data is the host's wait, during which the device computes. `whole`: seconds of all steps, until the device
  /// had done them. Waits for the device. @pre there are steps
  [[nodiscard]] nlohmann::json mean(double whole) const;
  /// `whole`: of the steps on the host, which a GPU keeps waiting once enough of them are launched. What it still does
  /// when the host has launched an epoch is no part of them: on a GPU the parts can be more than a step.
  [[nodiscard]] nlohmann::json mean() const;

 private:
  struct PhaseTime {
    double seconds = 0;
    std::vector<c10::Event> marks{};  ///< on a GPU: begins and ends in turn
  };

  void at(comm::flight::Phase phase, bool begins);
  [[nodiscard]] double seconds_of(comm::flight::Phase phase) const;

  c10::Device device_;
  bool in_step_ = false;
  std::int64_t steps_ = 0;
  StepTime sum_{};
  std::chrono::steady_clock::time_point began_;
  std::array<PhaseTime, 16> phases_{};
};

}  // namespace trireme::train
