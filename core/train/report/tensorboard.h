// TensorBoard: writes a run's steps and evaluations for TensorBoard (run.tensorboard), under tags that begin with the
// split. Steps: train/loss, lr, grad_norm, samples_per_s, data_wait and, where they are known, flops_per_s and mfu, as
// in metrics.jsonl. Evaluations: validation/METRIC, and train/epoch_loss at the end of an epoch; test/METRIC of the
// last weights, and test_best/METRIC of the best ones if they are others.
#pragma once

#include <optional>

#include "core/train/callback.h"
#include "core/train/report/event_file.h"

namespace trireme::train {

class TensorBoard final : public RunCallback {
 public:
  /// Rank 0 makes a file in RUN/tensorboard; a resumed run adds another.
  void on_start(RunContext& run) override;
  void on_log(RunContext& run, const StepLog& log) override;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;

 private:
  std::optional<EventFile> file_;  ///< only on rank 0, from on_start()
};

}  // namespace trireme::train
