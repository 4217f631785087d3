// EarlyStop: ends a training that does not improve.
#pragma once

#include "core/train/callback.h"

namespace trireme::train {

/// Stops the training when an evaluation was the `patience`-th in a row without a better one.
class EarlyStop final : public RunCallback {
 public:
  explicit EarlyStop(std::int64_t patience) : patience_(patience) {}
  /// A run that was stopped stays stopped when it is resumed.
  void on_start(RunContext& run) override { check(run); }
  void on_evaluate(RunContext& run, const Evaluation& /*evaluation*/) override { check(run); }

 private:
  void check(RunContext& run) const {
    if (run.stopped_by.empty() && run.state.evaluations_since_best >= patience_) run.stopped_by = "train.patience";
  }
  std::int64_t patience_;
};

}  // namespace trireme::train
