// Deadline: whether the run's time limit has passed by rank 0's clock, with the same answer on every rank. The answer
// for a step is read `lag` steps later, so that on a GPU the host stays ahead of the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "core/comm/world.h"
#include "core/train/callback.h"
#include "core/train/readback.h"

namespace trireme::train {

class Deadline {
 public:
  /// 0 for CPU ranks, where an answer is available at once.
  static std::size_t lag_on(c10::Device device) { return device.is_cpu() ? 0 : 4; }
  Deadline(comm::World& world, std::size_t lag) : world_(world), lag_(lag) {}

  /// Call once per step, on every rank. `over`: whether this rank's clock has passed the limit; only rank 0's value
  /// counts. Returns true from `lag` steps after the first step whose answer was true.
  bool passed(bool over);

 private:
  comm::World& world_;
  std::size_t lag_;
  std::size_t steps_ = 0;
  std::optional<std::size_t> first_over_;
  Readback answers_;
};

/// Stops the training after train.max_seconds.
class TimeLimit final : public RunCallback {
 public:
  explicit TimeLimit(double seconds) : limit_(seconds) {}
  void on_start(RunContext& run) override;
  void on_step_end(RunContext& run, const StepEnd& step) override;

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> limit_;
  std::optional<Deadline> deadline_;
  Clock::time_point begin_;
};

}  // namespace trireme::train
