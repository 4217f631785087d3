// BestWeights: keeps the weights with the best validation in RUN/model-best. EarlyStop: ends a training that does not
// improve.
#pragma once

#include "core/train/callback.h"
#include "core/train/export.h"

namespace trireme::train {

class BestWeights final : public RunCallback {
 public:
  explicit BestWeights(BestModel& model) : model_(model) {}
  /// Of equally good evaluations the first is kept.
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;

 private:
  BestModel& model_;
};

/// Stops the training when an evaluation was the train.patience-th in a row without a better one. It must come after
/// BestWeights, which counts them.
class EarlyStop final : public RunCallback {
 public:
  explicit EarlyStop(std::int64_t patience) : patience_(patience) {}
  /// A run that was stopped stays stopped when it is resumed.
  void on_start(RunContext& run) override { check(run); }
  void on_evaluate(RunContext& run, const Evaluation& /*evaluation*/) override { check(run); }

 private:
  void check(RunContext& run) const;
  std::int64_t patience_;
};

}  // namespace trireme::train
