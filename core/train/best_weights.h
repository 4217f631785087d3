// BestWeights: keeps the weights of the epoch with the best validation in RUN/model-best.
#pragma once

#include "core/train/callback.h"
#include "core/train/export.h"

namespace trireme::train {

class BestWeights final : public RunCallback {
 public:
  explicit BestWeights(BestModel& model) : model_(model) {}
  /// Of equally good epochs the first is kept.
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;

 private:
  BestModel& model_;
};

}  // namespace trireme::train
