// EpochTable: what a program's Trainer shows: the size of the training, then a table with a row for each evaluation, or
// for each epoch without one.
//
//    epoch   step   training loss   validation loss   accuracy
//        1    938          0.2261            0.0512     98.5 %
#pragma once

#include <cstdint>
#include <optional>

#include "core/train/callback.h"
#include "core/train/report/console.h"

namespace trireme::train {

class EpochTable final : public RunCallback {
 public:
  /// `logging_steps`: optimizer steps between lines with the loss; 0: none.
  explicit EpochTable(std::int64_t logging_steps) : logging_steps_(logging_steps) {}
  void on_start(RunContext& run) override;
  void on_log(RunContext& run, const StepLog& log) override;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;
  void on_epoch_end(RunContext& run, const EpochEnd& epoch) override;
  void on_message(RunContext& run, const std::string& line) override;
  void on_finish(RunContext& run, const RunResult& result) override;

 private:
  /// `end`: set at the end of an epoch, whose training loss is then shown; else the mean since the last row is.
  void row(RunContext& run, std::int64_t epoch, const std::optional<EpochEnd>& end,
           const std::vector<std::string>& values);
  std::int64_t logging_steps_;
  MeanLoss loss_;                ///< since the last row
  std::int64_t shown_step_ = 0;  ///< the last row's
  bool has_heading_ = false;
};

}  // namespace trireme::train
