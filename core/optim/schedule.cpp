#include "core/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::optim {
namespace {

using Factor = std::function<double(std::int64_t)>;

/// How far `step` is on the way from `begin` to `end`: 0 to 1, and 1 where there is no way.
double progress(double step, double begin, double end) {
  return end > begin ? std::clamp((step - begin) / (end - begin), 0.0, 1.0) : 1.0;
}

std::int64_t warmup_steps(const config::ScheduleOptions& o, std::int64_t total) {
  if (o.warmup_steps && o.warmup_ratio != 0)
    throw ConfigError("schedule.warmup_steps and schedule.warmup_ratio are both set; keep one of them");
  const auto warm =
      o.warmup_steps ? *o.warmup_steps : static_cast<std::int64_t>(o.warmup_ratio * static_cast<double>(total));
  const char* key = o.warmup_steps ? "warmup_steps" : "warmup_ratio";
  if (warm < 0 || warm > total)
    throw ConfigError(
        fmt::format("schedule.{} asks for {} steps of warm-up, and the training has {}; lower it, or train "
                    "longer",
                    key, warm, total));
  if (warm > 0 && o.name == "one_cycle")
    throw ConfigError(
        fmt::format("schedule.{} is set, and one_cycle has its own warm-up; remove it and set "
                    "schedule.pct_start",
                    key));
  return warm;
}

/// A key that the named schedule does not read must stay at its default.
void check_unused(const config::ScheduleOptions& o) {
  const config::ScheduleOptions defaults;
  struct Row {
    const char* key;
    bool changed;
    std::vector<std::string> readers;
  };
  const std::vector<Row> rows{
      {"min_lr_factor", o.min_lr_factor != defaults.min_lr_factor, {"linear", "cosine", "polynomial"}},
      {"step_size", o.step_size != defaults.step_size, {"step"}},
      {"milestones", o.milestones != defaults.milestones, {"multi_step"}},
      {"gamma", o.gamma != defaults.gamma, {"step", "multi_step"}},
      {"power", o.power != defaults.power, {"polynomial"}},
      {"div_factor", o.div_factor != defaults.div_factor, {"one_cycle"}},
      {"final_div_factor", o.final_div_factor != defaults.final_div_factor, {"one_cycle"}},
      {"pct_start", o.pct_start != defaults.pct_start, {"one_cycle"}}};
  for (const auto& [key, changed, readers] : rows)
    if (changed && std::find(readers.begin(), readers.end(), o.name) == readers.end())
      throw ConfigError(fmt::format("schedule.{} changes nothing with schedule.name = \"{}\"; remove it (it is for {})",
                                    key, o.name, text::join(readers)));
}

/// From 1 to the floor along a curve `shape` that falls from 1 to 0.
Factor falling(std::int64_t warm, std::int64_t total, double floor, std::function<double(double)> shape) {
  return [=](std::int64_t step) {
    const double p = progress(static_cast<double>(step), static_cast<double>(warm), static_cast<double>(total));
    return floor + (1 - floor) * shape(p);
  };
}

Factor step_drops(const config::ScheduleOptions& o, std::int64_t warm) {
  if (o.step_size < 1)
    throw ConfigError(
        fmt::format("schedule.step_size = {}: the step schedule needs the steps between drops, from 1", o.step_size));
  return [every = o.step_size, gamma = o.gamma, warm](std::int64_t step) {
    return std::pow(gamma, static_cast<double>((step - warm) / every));
  };
}

Factor milestone_drops(const config::ScheduleOptions& o, std::int64_t warm) {
  if (o.milestones.empty())
    throw ConfigError("schedule.milestones is empty: multi_step needs the steps of its drops, as in [100, 200]");
  for (std::size_t i = 0; i < o.milestones.size(); ++i) {
    if (i > 0 && o.milestones[i] <= o.milestones[i - 1])
      throw ConfigError(
          fmt::format("schedule.milestones: {} does not come after {}", o.milestones[i], o.milestones[i - 1]));
    if (o.milestones[i] < 1 || o.milestones[i] < warm)
      throw ConfigError(
          fmt::format("schedule.milestones: {} lies before the first full-rate step; it must be at least {}",
                      o.milestones[i], std::max<std::int64_t>(1, warm)));
  }
  return [at = o.milestones, gamma = o.gamma](std::int64_t step) {
    return std::pow(gamma, static_cast<double>(std::upper_bound(at.begin(), at.end(), step) - at.begin()));
  };
}

/// Smith and Topin, "Super-Convergence", 2018; cosine arcs up to the peak and down to peak / (div x final_div).
Factor one_cycle(const config::ScheduleOptions& o, std::int64_t total) {
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

Factor make_factor(const config::ScheduleOptions& o, std::int64_t warm, std::int64_t total) {
  const double floor = o.min_lr_factor;
  if (o.name == "constant") return [](std::int64_t) { return 1.0; };
  if (o.name == "linear") return falling(warm, total, floor, [](double p) { return 1 - p; });
  if (o.name == "cosine")
    return falling(warm, total, floor, [](double p) { return 0.5 * (1 + std::cos(std::numbers::pi * p)); });
  if (o.name == "polynomial")
    return falling(warm, total, floor, [power = o.power](double p) { return std::pow(1 - p, power); });
  if (o.name == "step") return step_drops(o, warm);
  if (o.name == "multi_step") return milestone_drops(o, warm);
  if (o.name == "one_cycle") return one_cycle(o, total);
  const std::vector<std::string> known{"constant", "linear", "cosine", "step", "multi_step", "polynomial", "one_cycle"};
  throw ConfigError(fmt::format("schedule.name: no schedule \"{}\" (known: {}){}", o.name, text::join(known),
                                text::did_you_mean(o.name, known)));
}

}  // namespace

LrSchedule::LrSchedule(const config::ScheduleOptions& options, double base_lr, std::int64_t total_steps) {
  if (total_steps < 1) throw ConfigError("the training has no optimizer step; check train.epochs and train.max_steps");
  const auto warm = warmup_steps(options, total_steps);
  const auto factor = make_factor(options, warm, total_steps);
  check_unused(options);
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
  TRIREME_CHECK(step >= 0, "no learning rate for step {}", step);
  return lr_(step);
}

std::string LrSchedule::describe() const { return text_; }

}  // namespace trireme::optim
