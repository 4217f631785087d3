// MetricsFile: writes a run's steps and evaluations to metrics.jsonl.
#pragma once

#include "core/train/callback.h"

namespace trireme::train {

class MetricsFile final : public RunCallback {
 public:
  void on_start(RunContext& run) override;
  void on_log(RunContext& run, const StepLog& log) override;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;
};

}  // namespace trireme::train
