#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/memory.h"
#include "core/comm/comm_stats.h"
#include "core/comm/host_values.h"
#include "core/plan/forecast.h"
#include "core/train/callbacks.h"

namespace trireme::train {
namespace {

class PlanComparison final : public RunCallback {
 public:
  explicit PlanComparison(std::shared_ptr<const plan::Forecast> planned) : planned_(std::move(planned)) {}

  void on_start(RunContext& run) override { begin_step(run); }
  void on_step_end(RunContext& run, const StepEnd& step) override {
    if (step.batch.global_samples < run.setup.batch.global) return begin_step(run);  // the epoch's last step
    if (seconds_.size() < kMostSteps) seconds_.push_back(step.seconds);
    if (is_over_) return;
    // The first step's are those of its set-up, too.
    if (const auto sent = run.world.comm_stats().wire_bytes() - sent_before_; sent_steps_++ == 0)
      sent_first_ = sent;
    else
      sent_ += sent;
    peak_ = memory::peak_of(run.world.device());
    begin_step(run);
  }
  void on_evaluate(RunContext& /*run*/, const Evaluation& /*evaluation*/) override { is_over_ = true; }
  void on_epoch_end(RunContext& /*run*/, const EpochEnd& /*epoch*/) override { is_over_ = true; }
  void on_save(RunContext& /*run*/, const std::string& /*checkpoint*/) override { is_over_ = true; }

  void on_summary(RunContext& run, nlohmann::json& summary) override {
    const auto& ranks = run.world.group();
    const auto peak = comm::reduce_value(ranks, peak_, comm::ReduceOp::max);
    const auto later = static_cast<double>(sent_steps_) - 1;
    const double mine = later > 0 ? static_cast<double>(sent_) / later : static_cast<double>(sent_first_);
    const auto sent = comm::reduce_value(ranks, mine, comm::ReduceOp::sum);
    if (planned_ && !planned_->problem.empty()) summary["plan"] = {{"problem", planned_->problem}};
    if (is_planned())
      summary["plan"] = {{"peak_bytes", planned_->memory.peak},
                         {"sent_bytes", planned_->sent_bytes()},
                         {"step_seconds", planned_->time.step > 0 ? nlohmann::json(planned_->time.step) : nullptr}};
    if (sent_steps_ == 0) return;  // a resumed run that had no step left
    measured_ = {{"peak_bytes", peak}, {"sent_bytes", sent}, {"step_seconds", steady_seconds()}};
    summary["measured"] = measured_;
  }
  void on_finish(RunContext& run, const RunResult& /*result*/) override {
    if (is_planned() && !measured_.is_null()) run.say(line());
  }

 private:
  static constexpr std::size_t kMostSteps = 10'000;  // enough for a median

  [[nodiscard]] bool is_planned() const { return planned_ && planned_->problem.empty(); }
  void begin_step(RunContext& run) { sent_before_ = run.world.comm_stats().wire_bytes(); }

  /// The median of the steps after the first, which also sets up; null when there is none.
  [[nodiscard]] nlohmann::json steady_seconds() const {
    if (seconds_.size() < 2) return nullptr;
    std::vector<double> steady(seconds_.begin() + 1, seconds_.end());
    const auto middle = steady.begin() + static_cast<std::ptrdiff_t>(steady.size() / 2);
    std::nth_element(steady.begin(), middle, steady.end());
    return *middle;
  }

  /// "plan      21.4 MiB a rank (planned 21.4), 2.531 MB sent a step (planned 2.531)"
  [[nodiscard]] std::string line() const {
    const double mib = 1 << 20;
    auto out =
        fmt::format("plan      {:.1f} MiB of tensors a rank (planned {:.1f}), {:.3f} MB sent a step (planned {:.3f})",
                    measured_.at("peak_bytes").get<double>() / mib, static_cast<double>(planned_->memory.peak) / mib,
                    measured_.at("sent_bytes").get<double>() / 1e6, planned_->sent_bytes() / 1e6);
    if (const auto& seconds = measured_.at("step_seconds"); planned_->time.step > 0 && seconds.is_number())
      out += fmt::format(", {:.1f} ms a step (planned {:.1f})", 1e3 * seconds.get<double>(), 1e3 * planned_->time.step);
    return out;
  }

  std::shared_ptr<const plan::Forecast> planned_;
  bool is_over_ = false;  ///< what comes now takes memory and messages that are no step's
  std::int64_t peak_ = 0;
  std::uint64_t sent_first_ = 0, sent_ = 0, sent_before_ = 0;  ///< in the first step; in the others
  std::int64_t sent_steps_ = 0;
  std::vector<double> seconds_;
  nlohmann::json measured_;
};

}  // namespace

std::shared_ptr<RunCallback> plan_comparison(std::shared_ptr<const plan::Forecast> planned) {
  return std::make_shared<PlanComparison>(std::move(planned));
}

}  // namespace trireme::train
