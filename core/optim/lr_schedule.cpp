#include "core/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace trireme::optim {
namespace {

using Factor = std::function<double(std::int64_t)>;

/// The position of `step` between `begin` and `end`, from 0 to 1; 1 if the interval is empty.
double progress(double step, double begin, double end) {
  return end > begin ? std::clamp((step - begin) / (end - begin), 0.0, 1.0) : 1.0;
}

std::int64_t warmup_steps(const config::LrScheduleOptions& o, std::int64_t total) {
  const auto warm =
      o.warmup_steps ? *o.warmup_steps : static_cast<std::int64_t>(o.warmup_ratio * static_cast<double>(total));
  const char* key = o.warmup_steps ? "warmup_steps" : "warmup_ratio";
  if (warm > total)
    throw ConfigError(
        fmt::format("schedule.{} sets {} warm-up steps, but the training has only {}; lower it, or train longer", key,
                    warm, total));
  return warm;
}

/// Falls from 1 to `floor` along `shape`, a curve from 1 to 0.
Factor falling(std::int64_t warm, std::int64_t total, double floor, std::function<double(double)> shape) {
  return [=](std::int64_t step) {
    const double p = progress(static_cast<double>(step), static_cast<double>(warm), static_cast<double>(total));
    return floor + (1 - floor) * shape(p);
  };
}

Factor step_drops(const config::LrScheduleOptions& o, std::int64_t warm) {
  return [every = o.step_size, gamma = o.gamma, warm](std::int64_t step) {
    return std::pow(gamma, static_cast<double>((step - warm) / every));
  };
}

Factor milestone_drops(const config::LrScheduleOptions& o, std::int64_t warm) {
  if (o.milestones.front() < warm)
    throw ConfigError(fmt::format("schedule.milestones: {} is before the end of the warm-up; it must be at least {}",
                                  o.milestones.front(), warm));
  return [at = o.milestones, gamma = o.gamma](std::int64_t step) {
    return std::pow(gamma, static_cast<double>(std::upper_bound(at.begin(), at.end(), step) - at.begin()));
  };
}

/// Smith and Topin, "Super-Convergence", 2018; cosine arcs up to the peak and down to peak / (div x final_div).
Factor one_cycle(const config::LrScheduleOptions& o, std::int64_t total) {
  const double peak_at = o.pct_start * static_cast<double>(total) - 1, end = static_cast<double>(total - 1);
  const double first = 1 / o.div_factor, last = first / o.final_div_factor;
  const auto arc = [](double from, double to, double p) {
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * p));
  };
  return [=](std::int64_t step) {
    const auto s = static_cast<double>(step);
    if (s <= peak_at) return arc(first, 1, progress(s, 0, peak_at));
    return arc(1, last, progress(s, peak_at, end));
  };
}

Factor make_factor(const config::LrScheduleOptions& o, std::int64_t warm, std::int64_t total) {
  const double floor = o.min_lr_factor;
  if (o.name == "constant") return [](std::int64_t) { return 1.0; };
  if (o.name == "linear") return falling(warm, total, floor, [](double p) { return 1 - p; });
  if (o.name == "cosine")
    return falling(warm, total, floor, [](double p) { return 0.5 * (1 + std::cos(std::numbers::pi * p)); });
  if (o.name == "polynomial")
    return falling(warm, total, floor, [power = o.power](double p) { return std::pow(1 - p, power); });
  if (o.name == "step") return step_drops(o, warm);
  if (o.name == "multi_step") return milestone_drops(o, warm);
  TRIREME_CHECK(o.name == "one_cycle", "no learning-rate schedule is called \"{}\"", o.name);
  return one_cycle(o, total);
}

}  // namespace

LrSchedule::LrSchedule(const config::LrScheduleOptions& options, double base_lr, std::int64_t total_steps) {
  config::check_options(options);
  if (total_steps < 1) throw ConfigError("the training has no optimizer steps; check train.epochs and train.max_steps");
  const auto warm = warmup_steps(options, total_steps);
  const auto factor = make_factor(options, warm, total_steps);
  lr_ = [=](std::int64_t step) {
    if (step < warm) return base_lr * static_cast<double>(step + 1) / static_cast<double>(warm);
    return base_lr * factor(step);
  };
  text_ = options.name;
  if (options.warmup_steps && warm > 0)
    text_ += fmt::format(" with {} warm-up steps", warm);
  else if (warm > 0)
    text_ += fmt::format(" with {:g} % warm-up", options.warmup_ratio * 100);
}

double LrSchedule::lr(std::int64_t step) const {
  TRIREME_REQUIRE(step >= 0, "step {} has no learning rate; steps count from 0", step);
  return lr_(step);
}

std::string LrSchedule::describe() const { return text_; }

}  // namespace trireme::optim
