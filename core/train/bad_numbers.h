// BadNumbers: judges the loss and gradient norm of each step, and decides what the training does about bad ones
// (docs/bad_numbers.md). It changes nothing itself.
//
// A step is bad when its loss or gradient norm is not finite. Its update was skipped on the device if the norm is not
// finite (BoostedOptimizer::step), whatever train.on_nonfinite says. With a loss scale a skipped step is part of the
// search for the scale, so that only kBadLosses bad losses or kSkips skipped steps in a row count; no scale helps when
// the loss itself overflows.
//
// A step's loss is a spike when it is more than train.loss_spike deviations above the median of the losses before it.
// The deviation is 1.4826 times the median absolute deviation, which estimates the standard deviation and is not moved
// by outliers (B. Iglewicz and D. C. Hoaglin, "How to Detect and Handle Outliers", ASQC, 1993, section 3.3).
//
// All ranks come to the same decisions, as all have the same loss and norm; but on GPUs each reads them in another
// step. Therefore due() gives a decision only when every rank has read the step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/resume/resume.h"

namespace trireme::train {

struct StepLog;
struct TrainSection;

/// A step about which something is to be done.
struct BadStep {
  enum class Act { stop, rollback } act = Act::stop;
  bool spike = false;                 ///< else not finite
  std::int64_t step = 0;              ///< from 1
  std::vector<std::int64_t> steps{};  ///< it, and the bad ones in a row before it
  std::string what{};                 ///< "step 12: the loss is nan and the gradient norm nan"
  std::string remedy{};
};

class BadNumbers {
 public:
  static constexpr int kBadLosses = 3;  ///< consecutive, with a loss scale
  static constexpr int kSkips = 50;     ///< consecutive: enough to halve 2^32 down to 1, plus a margin
  static constexpr std::size_t kWindow = 64, kLeastLosses = 16;  ///< losses to compare with

  BadNumbers(const TrainSection& options, NumbersState& state) : options_(options), state_(state) {}

  /// Takes in the numbers of a step; the steps come in their order. Returns a line for the user, or "".
  std::string see(const StepLog& log, bool has_loss_scale);
  /// A step has been launched, whose numbers see() may get later.
  void launched() { ++launched_; }
  /// The step to act on. `lag`: of the launched steps, those that see() may not have got yet. The same on every rank if
  /// all ranks call it after the same step with the same lag.
  [[nodiscard]] std::optional<BadStep> due(std::int64_t lag) const;
  /// A return to the checkpoint of step `to` is about to happen. False: there were too many in a row.
  bool may_return(std::int64_t to);
  /// After a return, with which the state became that of the checkpoint: `known` is the state before it. The batches of
  /// these steps are left out from now on, with those that were left out before.
  void go_back(const NumbersState& known, const std::vector<std::int64_t>& steps);
  /// Whether the batch of this step (from 1) is left out, because the run has returned to a checkpoint before it.
  [[nodiscard]] bool leaves_out(std::int64_t step) const;
  /// Whether the run may have to return to a checkpoint.
  [[nodiscard]] bool may_need_checkpoint() const;
  /// @throws NonFiniteError
  static void check_validation(std::int64_t epoch, double loss);

 private:
  std::string judge(const StepLog& log, bool has_loss_scale);
  std::string judge_spike(const StepLog& log);
  void decide(BadStep bad);

  const TrainSection& options_;
  NumbersState& state_;
  std::int64_t launched_ = 0, seen_ = 0, decided_at_ = 0;
  std::optional<BadStep> decided_;
  bool skip_reported_ = false;
};

}  // namespace trireme::train
