// ProgressReport: shows a run's steps and epochs on the console.
#pragma once

#include <chrono>

#include "core/train/callback.h"

namespace trireme::train {

class ProgressReport final : public RunCallback {
 public:
  /// `total_steps`: of the run. `peak`: of all ranks together, in FLOP/s; unset if it is unknown.
  ProgressReport(std::int64_t total_steps, std::optional<double> peak) : total_steps_(total_steps), peak_(peak) {}
  void on_start(RunContext& run) override;
  void on_log(RunContext& run, const StepLog& log) override;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;

 private:
  std::int64_t total_steps_;
  std::optional<double> peak_;
  double waited_ = 0, seconds_a_step_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace trireme::train
