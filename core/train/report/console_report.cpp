#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "core/base/text.h"
#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"
#include "core/train/report/header.h"
#include "core/train/report/summary.h"

namespace trireme::train {
namespace {

class ConsoleReport final : public RunCallback {
 public:
  ConsoleReport(Terminal terminal, bool active) : console_(terminal, active) {}
  void on_start(RunContext& run) override {
    print_header(console_, run.setup, run.boosted, run.staging_bytes);
    const auto& at = run.state.at;
    if (const auto& from = run.resumed_from; !from.empty())
      console_.line(at.global_step < run.setup.batch.steps
                        ? fmt::format("resume    from {}: epoch {}, step {}", from, at.epoch + 1, at.global_step)
                        : fmt::format("resume    from {}: all {} done; evaluation and export are left", from,
                                      text::quantity(at.global_step, "step")));
    for (const auto& note : run.folder->resume_point().notes) console_.line(note);
    begin_ = std::chrono::steady_clock::now();
  }
  void on_log(RunContext& run, const StepLog& log) override {
    // The first step of the process and of an epoch is warm-up; after it, a moving average over about ten steps.
    const bool restarts = log.at.step_in_epoch <= 2 || log.at.global_step - run.resumed_at <= 2;
    seconds_a_step_ = restarts ? log.seconds : 0.9 * seconds_a_step_ + 0.1 * log.seconds;
    waited_ += log.data_wait;
    const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const auto left = run.setup.batch.steps - log.at.global_step;
    Progress progress{.epoch = log.at.epoch + 1,
                      .epochs = run.setup.config.train.epochs,
                      .step = log.at.step_in_epoch,
                      .steps = std::min(run.boosted.loader->steps_per_epoch(), log.at.step_in_epoch + left),
                      .total_left = left,
                      .loss = log.loss,
                      .lr = log.lr,
                      .grad_norm = log.grad_norm,
                      .samples_per_s = static_cast<double>(log.samples) / seconds_a_step_,
                      .data_wait = waited_ / std::max(1e-9, elapsed),
                      .worker_rates = run.boosted.loader->worker_rates(),
                      .skipped = run.state.skipped};
    if (log.flops) progress.flops_per_s = *log.flops / seconds_a_step_;
    if (log.flops && run.peak_flops) progress.mfu = *progress.flops_per_s / *run.peak_flops;
    console_.progress(progress, seconds_a_step_);
  }
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override {
    if (evaluation.split != std::string_view("validation")) return;
    const auto& result = evaluation.result;
    const auto& shown = run.setup.task.shown;
    const auto& epoch = evaluation.epoch;
    auto line = epoch ? fmt::format("epoch {:<3} train {:.4f}   ", evaluation.of.epoch, epoch->train_loss)
                      : fmt::format("step {:<19} ", evaluation.of.step);
    line += fmt::format("validation {:.4f}", result.loss);
    if (shown.name != kLoss) line += fmt::format("   {} {}", shown.label, metric_text(shown, result.value(shown.name)));
    if (epoch && epoch->padded_share) line += fmt::format("   padding {:.1f} %", 100 * *epoch->padded_share);
    console_.line(fmt::format("{}   {:.1f} s", line, epoch ? epoch->seconds : result.seconds));
  }
  void on_message(RunContext& /*run*/, const std::string& line) override { console_.line(line); }
  void on_finish(RunContext& /*run*/, const RunResult& result) override {
    for (const auto& line : closing_lines(result)) console_.line(line);
  }
  /// The bar is removed before the error is printed.
  void on_exception(const std::exception_ptr& /*error*/) override { console_.clear_bar(); }

 private:
  Console console_;
  double waited_ = 0, seconds_a_step_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

std::shared_ptr<RunCallback> console_report(Terminal terminal, bool active) {
  return std::make_shared<ConsoleReport>(terminal, active);
}

}  // namespace trireme::train
