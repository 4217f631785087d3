#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>

#include "core/base/text.h"
#include "core/nn/parameters.h"
#include "core/resume/export.h"
#include "core/resume/run_folder.h"
#include "core/train/callbacks.h"
#include "core/train/report/header.h"
#include "core/train/report/summary.h"

namespace trireme::train {
namespace {

void print_line(const RunContext& run, const std::string& text) {
  if (run.world.rank() != 0) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

/// The columns of the table after the epoch, the step and the training loss.
std::vector<std::string> headings(const RunContext& run) {
  std::vector<std::string> columns{"epoch", "step", "training loss"};
  if (!run.setup.plan.evaluates_epochs && !run.setup.config.train.eval_every) return columns;
  columns.emplace_back("validation loss");
  for (const auto& metric : run.setup.task.made->metrics()) columns.push_back(metric.label);
  return columns;
}

std::string cells(const std::vector<std::string>& headings, const std::vector<std::string>& values) {
  std::string line;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto width = std::max<std::size_t>(6, headings[i].size());
    line += fmt::format("{}{:>{}}", i == 0 ? "" : "   ", values[i], width);
  }
  return line;
}

class EpochTable final : public RunCallback {
 public:
  explicit EpochTable(std::int64_t logging_steps) : logging_steps_(logging_steps) {}
  void on_start(RunContext& run) override {
    const auto& setup = run.setup;
    const auto& train = setup.config.train;
    auto& loader = *run.boosted.loader;
    print_line(run, versions_line(run.world));
    print_line(run, fmt::format("{}   {}", run.booster.mesh().formula(), plugin_line(run.booster.plugin())));
    const std::pair<const char*, std::string> rows[]{
        {"examples", text::thousands(loader.size())},
        {"epochs", text::thousands(train.epochs)},
        {"batch size per device", text::thousands(setup.batch.micro)},
        {"total batch size", text::thousands(train.global_batch)},
        {"accumulation steps", text::thousands(loader.micro_per_step())},
        {"optimization steps", text::thousands(setup.batch.steps)},
        {"parameters", text::thousands(nn::parameter_count(run.boosted.model->module()))}};
    for (const auto& [name, value] : rows) print_line(run, fmt::format("  {:<24}{:>10}", name, value));
    if (const auto& from = run.resumed_from; !from.empty())
      print_line(run, fmt::format("  resumed after step {} from {}", run.resumed_at, from));
    for (const auto& note : run.folder->resume_point().notes) print_line(run, "  " + note);
    shown_step_ = run.resumed_at;
  }
  void on_log(RunContext& run, const StepLog& log) override {
    loss_.add(log.loss, log.weight);
    if (logging_steps_ > 0 && log.at.global_step % logging_steps_ == 0)
      print_line(run, fmt::format("step {}   loss {:.4f}   lr {:.3e}", log.at.global_step, log.loss, log.lr));
  }
  void on_evaluate(RunContext& run, const Evaluation& evaluation) override {
    const auto& result = evaluation.result;
    std::vector<std::string> values{fmt::format("{:.4f}", result.loss)};
    for (const auto& [metric, value] : result.metrics) values.push_back(metric_text(metric, value));
    if (evaluation.split == std::string_view("validation"))
      return row(run, evaluation.of.epoch, evaluation.epoch, values);
    std::string line = fmt::format("test ({} weights)   loss {:.4f}", evaluation.weights, result.loss);
    for (const auto& [metric, value] : result.metrics)
      line += fmt::format("   {} {}", metric.label, metric_text(metric, value));
    print_line(run, line);
  }
  void on_epoch_end(RunContext& run, const EpochEnd& epoch) override {
    if (shown_step_ != run.state.at.global_step) row(run, epoch.epoch, epoch, {});
  }
  void on_message(RunContext& run, const std::string& line) override { print_line(run, line); }
  void on_finish(RunContext& run, const RunResult& result) override {
    print_line(run, fmt::format("done in {:.1f} s{}; weights in {}/{}", result.seconds,
                                result.stopped_by.empty() ? "" : ", stopped by " + result.stopped_by, result.run_dir,
                                kExportedModel));
  }

 private:
  /// `end`: set at the end of an epoch, whose training loss is then shown; else the mean since the last row is.
  void row(RunContext& run, std::int64_t epoch, const std::optional<EpochEnd>& end,
           const std::vector<std::string>& values) {
    const auto columns = headings(run);
    if (!std::exchange(has_heading_, true)) print_line(run, cells(columns, columns));
    const auto step = run.state.at.global_step;
    const double loss = end ? end->train_loss : loss_.value();
    std::vector<std::string> all{std::to_string(epoch), std::to_string(step),
                                 loss_.weight == 0 ? "-" : fmt::format("{:.4f}", loss)};
    all.insert(all.end(), values.begin(), values.end());
    print_line(run, cells(columns, all));
    shown_step_ = step;
    loss_ = {};
  }
  std::int64_t logging_steps_;
  MeanLoss loss_;                ///< since the last row
  std::int64_t shown_step_ = 0;  ///< the last row's
  bool has_heading_ = false;
};

}  // namespace

std::shared_ptr<RunCallback> epoch_table(std::int64_t logging_steps) {
  return std::make_shared<EpochTable>(logging_steps);
}

}  // namespace trireme::train
