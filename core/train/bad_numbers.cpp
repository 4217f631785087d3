#include "core/train/bad_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/setup/run_config.h"
#include "core/train/callback.h"

namespace trireme::train {
namespace {

constexpr const char* kLowerRate = "Lower optimizer.lr, lengthen the warm-up, or set train.max_norm";

/// Removes the sign that a NaN may have.
double without_sign(double v) { return std::isnan(v) ? std::abs(v) : v; }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string BadNumbers::see(const StepLog& log, bool has_loss_scale) {
  ++seen_;
  if (decided_) return "";  // later steps do not count any more
  auto line = judge(log, has_loss_scale);
  return line.empty() ? judge_spike(log) : line;
}

std::string BadNumbers::judge(const StepLog& log, bool has_loss_scale) {
  const bool bad_loss = !std::isfinite(log.loss), bad = bad_loss || !std::isfinite(log.grad_norm);
  const auto step = log.at.global_step;
  state_.bad_losses = bad_loss ? state_.bad_losses + 1 : 0;
  state_.skips = log.skipped ? state_.skips + 1 : 0;
  if (bad || log.skipped)
    state_.series.push_back(step);
  else
    state_.series.clear();
  const bool skips = options_.on_nonfinite == "skip";
  const auto most = options_.max_nonfinite;
  bool failed = bad;
  if (has_loss_scale)
    failed = state_.bad_losses >= kBadLosses || state_.skips >= std::max<std::int64_t>(kSkips, skips ? most : 0);
  if (!failed) return "";
  const auto before = static_cast<std::int64_t>(state_.series.size()) - 1;
  BadStep found{.act = options_.on_nonfinite == "rollback" ? BadStep::Act::rollback : BadStep::Act::stop,
                .step = step,
                .steps = state_.series,
                .what = fmt::format("step {}: the loss is {} and the gradient norm {}; the step was {}", step,
                                    without_sign(log.loss), without_sign(log.grad_norm),
                                    log.skipped ? "not applied" : "applied, as its gradients are finite"),
                .remedy = fmt::format("{}{}", kLowerRate, has_loss_scale ? ", or train in bf16 or fp32" : "")};
  if (before > 0) found.what += fmt::format(", and {} before {} bad too", before, before == 1 ? "it was" : "it were");
  const bool too_many = has_loss_scale
                            ? state_.bad_losses > most || state_.skips >= std::max<std::int64_t>(kSkips, most)
                            : before >= most;
  if (!skips || too_many) {
    if (skips) found.what += fmt::format("; train.max_nonfinite = {} allows no more in a row", most);
    decide(std::move(found));
    return "";
  }
  if (std::exchange(skip_reported_, true)) return "";
  return fmt::format(
      "skipped   {} (train.on_nonfinite = \"skip\"); later ones are counted in the progress line and in "
      "metrics.jsonl",
      found.what);
}

std::string BadNumbers::judge_spike(const StepLog& log) {
  if (options_.loss_spike == 0 || !std::isfinite(log.loss) || decided_) return "";
  std::string line;
  auto& losses = state_.losses;
  if (losses.size() >= kLeastLosses) {
    const double center = median(losses);
    std::vector<double> off;
    for (const auto loss : losses) off.push_back(std::abs(loss - center));
    // At least 1 % of the median: losses that hardly differ, as on a plateau, are no measure.
    const double deviation = std::max(1.4826 * median(off), 0.01 * std::abs(center));
    const auto step = log.at.global_step;
    if (log.loss > center + options_.loss_spike * deviation) {
      auto what = fmt::format(
          "step {}: the loss {:.4g} is a spike, {:.1f} deviations above {:.4g}, the median of the {} losses before it",
          step, log.loss, (log.loss - center) / deviation, center, losses.size());
      if (options_.on_loss_spike == "warn")
        line = fmt::format("spike     {}", what);
      else
        decide({.act = options_.on_loss_spike == "rollback" ? BadStep::Act::rollback : BadStep::Act::stop,
                .spike = true,
                .step = step,
                .steps = {step},
                .what = std::move(what),
                .remedy = fmt::format("{}, or raise train.loss_spike", kLowerRate)});
    }
  }
  losses.push_back(log.loss);
  if (losses.size() > kWindow) losses.erase(losses.begin());
  return line;
}

void BadNumbers::decide(BadStep bad) {
  decided_ = std::move(bad);
  decided_at_ = seen_;
}

std::optional<BadStep> BadNumbers::due(std::int64_t lag) const {
  return decided_ && launched_ - decided_at_ >= lag ? decided_ : std::nullopt;
}

bool BadNumbers::may_return(std::int64_t to) {
  if (std::exchange(state_.returned_to, to) != to) state_.returns = 0;
  return ++state_.returns <= options_.max_nonfinite;
}

void BadNumbers::go_back(const NumbersState& known, const std::vector<std::int64_t>& steps) {
  state_.returned_to = known.returned_to;
  state_.returns = known.returns;
  auto& all = state_.left_out;
  for (const auto& more : {known.left_out, steps}) all.insert(all.end(), more.begin(), more.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  decided_.reset();
  launched_ = seen_ = 0;
}

bool BadNumbers::leaves_out(std::int64_t step) const {
  return std::binary_search(state_.left_out.begin(), state_.left_out.end(), step);
}

bool BadNumbers::may_need_checkpoint() const {
  return options_.on_nonfinite == "rollback" || (options_.loss_spike > 0 && options_.on_loss_spike == "rollback");
}

void BadNumbers::check_validation(std::int64_t epoch, double loss) {
  if (!std::isfinite(loss))
    throw NonFiniteError(fmt::format("epoch {}: the validation loss is {}. {}", epoch, without_sign(loss), kLowerRate));
}

}  // namespace trireme::train
