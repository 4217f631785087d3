// RunEvaluations: a run's evaluations on the validation split: after which steps one is due, which one is the best so
// far, and how many have not been better since, which early stopping reads (callbacks.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "core/train/callback.h"
#include "core/train/run_saves.h"

namespace trireme::train {

class RunEvaluations {
 public:
  RunEvaluations(RunContext& run, RunSaves& saves) : run_(run), saves_(saves) {}
  /// Whether one is due after the step just made, by train.eval_every.
  [[nodiscard]] bool is_due() const { return run_.is_due(run_.setup.config.train.eval_every.value_or(0)); }
  /// Whether the epoch, or the part of it that was trained, has yet to be evaluated.
  [[nodiscard]] bool is_epoch_due() const;
  /// Whether the weights at the end of the training have yet to be evaluated.
  [[nodiscard]] bool is_final_due() const;
  /// Evaluates, unless a signal stops the run in it, and keeps the best weights. `epoch_end`: given at the end of an
  /// epoch, and called after the evaluation. @pre the numbers of all steps are read. Collective. @throws NonFiniteError
  void evaluate(const std::function<EpochEnd()>& epoch_end = {});
  /// @throws UsageError when there is no evaluation data
  data::Loader& loader();

 private:
  void record(const EvalResult& eval, const std::optional<EpochEnd>& epoch);

  RunContext& run_;
  RunSaves& saves_;
  std::unique_ptr<data::Loader> loader_;
};

}  // namespace trireme::train
