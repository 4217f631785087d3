// FiniteWatch: ends a run whose loss or gradient norm is no longer finite.
//
// Without a loss scale every loss and gradient norm must be finite. With one, a step may be skipped. But no scale helps
// when the loss itself overflows, and a long sequence of skipped steps is not a search for the right scale.
#pragma once

#include <cstdint>

#include "core/train/callback.h"

namespace trireme::train {

class FiniteWatch final : public RunCallback {
 public:
  static constexpr int kBadLosses = 3;  ///< consecutive, with a loss scale
  static constexpr int kSkips = 50;     ///< consecutive: enough to halve 2^32 down to 1, plus a margin

  void on_log(RunContext& run, const StepLog& log) override {
    step(log.at.global_step, log.loss, log.grad_norm, log.skipped, run.boosted.optimizer->scaler().enabled());
  }
  /// @throws NonFiniteError
  void step(std::int64_t number, double loss, double grad_norm, bool skipped, bool has_loss_scale);
  /// @throws NonFiniteError
  static void validation(std::int64_t epoch, double loss);

 private:
  int bad_losses_ = 0, skips_ = 0;
};

}  // namespace trireme::train
