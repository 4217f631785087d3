// RankLog: writes this rank's step times, and the error that ends it, to its own log (run.rank_logs). The rank's Log
// writes notes and warnings to the same file.
#pragma once

#include "core/base/log.h"
#include "core/train/callback.h"

namespace trireme::train {

class RankLog final : public RunCallback {
 public:
  /// @pre `file` is not null
  explicit RankLog(std::shared_ptr<LogFile> file) : file_(std::move(file)) {}
  void on_step_end(RunContext& run, const StepEnd& step) override;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;
  void on_exception(const std::exception_ptr& error) override;

 private:
  std::shared_ptr<LogFile> file_;
};

}  // namespace trireme::train
