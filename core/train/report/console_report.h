// ConsoleReport: what `trireme train` shows: a header, a progress bar, a line for each epoch, the closing lines.
#pragma once

#include <chrono>

#include "core/train/callback.h"
#include "core/train/report/console.h"

namespace trireme::train {

class ConsoleReport final : public RunCallback {
 public:
  ConsoleReport(Terminal terminal, bool active) : console_(terminal, active) {}
  void on_start(RunContext& run) override;
  void on_log(RunContext& run, const StepLog& log) override;
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override;
  void on_message(RunContext& /*run*/, const std::string& line) override { console_.line(line); }
  void on_finish(RunContext& run, const RunResult& result) override;
  /// The bar is removed before the error is printed.
  void on_exception(const std::exception_ptr& /*error*/) override { console_.clear_bar(); }

 private:
  Console console_;
  double waited_ = 0, seconds_a_step_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace trireme::train
