// Learning-rate schedules: the warm-up, then the curves that follow it.
#include "core/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/error.h"
#include "core/config/table.h"

namespace trireme::optim {

const Fields<LrScheduleOptions>& lr_schedule_fields() {
  using O = LrScheduleOptions;
  static const auto table =
      Fields<O>("schedule",
                "The learning-rate schedule, evaluated at each optimizer step. The other keys of this section are "
                "options of the one that name selects.")
          .add("warmup_steps", &O::warmup_steps, "Steps of linear warm-up from 0; an alternative to warmup_ratio.",
               {.min = 0, .max = kMostSteps})
          .add("warmup_ratio", &O::warmup_ratio, "Warm-up as a fraction of all steps; an alternative to warmup_steps.",
               {.min = 0, .below = 1})
          .rule([](const O& o, const CheckedSection& section) {
            if (o.warmup_steps && o.warmup_ratio != 0)
              section.fail("warmup_steps",
                           fmt::format("conflicts with {}; set only one of them", section.location("warmup_ratio")));
          });
  return table;
}

void check_options(const LrScheduleOptions& options) {
  config::check_options(lr_schedule_fields(), options);
  config::check_own_options(options.curve);
}

static CurveRange range_of(const LrScheduleOptions& o, std::int64_t total) {
  CurveRange range{.total = total};
  if (o.warmup_steps || o.warmup_ratio != 0)
    range.warmup_key = o.warmup_steps ? "schedule.warmup_steps" : "schedule.warmup_ratio";
  range.warmup =
      o.warmup_steps ? *o.warmup_steps : static_cast<std::int64_t>(o.warmup_ratio * static_cast<double>(total));
  if (range.warmup > total)
    throw ConfigError(fmt::format("{} sets {} warm-up steps, but the training has only {}; lower it, or train longer",
                                  range.warmup_key, range.warmup, total));
  return range;
}

LrSchedule::LrSchedule(const LrScheduleOptions& options, double base_lr, std::int64_t total_steps) {
  check_options(options);
  if (total_steps < 1) throw ConfigError("the training has no optimizer steps; check train.epochs and train.max_steps");
  const auto range = range_of(options, total_steps);
  lr_ = [base_lr, warm = range.warmup, curve = options.curve(range)](std::int64_t step) {
    if (step < warm) return base_lr * static_cast<double>(step + 1) / static_cast<double>(warm);
    return base_lr * curve(step);
  };
  text_ = options.curve.name();
  if (options.warmup_steps && range.warmup > 0)
    text_ += fmt::format(" with {} warm-up steps", range.warmup);
  else if (range.warmup > 0)
    text_ += fmt::format(" with {:g} % warm-up", options.warmup_ratio * 100);
}

double LrSchedule::lr(std::int64_t step) const {
  TRIREME_REQUIRE(step >= 0, "step {} has no learning rate; steps count from 0", step);
  return lr_(step);
}

std::string LrSchedule::describe() const { return text_; }

namespace {

/// The position of `step` between `begin` and `end`, from 0 to 1; 1 if the interval is empty.
double progress(double step, double begin, double end) {
  return end > begin ? std::clamp((step - begin) / (end - begin), 0.0, 1.0) : 1.0;
}

/// Falls from 1 to `floor` along `shape`, a curve from 1 to 0.
Curve falling(const CurveRange& range, double floor, std::function<double(double)> shape) {
  return [begin = static_cast<double>(range.warmup), end = static_cast<double>(range.total), floor,
          shape = std::move(shape)](std::int64_t step) {
    return floor + (1 - floor) * shape(progress(static_cast<double>(step), begin, end));
  };
}

Fields<DecayOptions> decay_fields(const char* name, const char* text) {
  return Fields<DecayOptions>("schedule", text)
      .with("name", name)
      .add("min_lr_factor", &DecayOptions::min_lr_factor, "The learning rate at the end, as a fraction of lr.",
           {.min = 0, .max = 1});
}

constexpr const char* kGammaText = "The factor by which each drop multiplies the learning rate.";

const Fields<StepDropsOptions>& step_fields() {
  using O = StepDropsOptions;
  static const auto table =
      Fields<O>("schedule", "Drops at regular distances.")
          .with("name", "step")
          .add("step_size", &O::step_size, "Steps between two drops; required.", {.min = 0, .max = kMostSteps})
          .add("gamma", &O::gamma, kGammaText, {.above = 0})
          .rule([](const O& o, const CheckedSection& section) {
            if (o.step_size == 0)
              section.fail("step_size", "is required with name = \"step\": the steps between two drops, 1 or more");
          });
  return table;
}

const Fields<MilestoneDropsOptions>& milestone_fields() {
  using O = MilestoneDropsOptions;
  static const auto table =
      Fields<O>("schedule", "Drops at given steps.")
          .with("name", "multi_step")
          .add("milestones", &O::milestones,
               "The steps at which the learning rate drops, in ascending order; required.",
               {.min = 1, .max = kMostSteps})
          .add("gamma", &O::gamma, kGammaText, {.above = 0})
          .rule([](const O& o, const CheckedSection& section) {
            if (o.milestones.empty())
              section.fail("milestones", "are required with name = \"multi_step\": the steps of the drops");
            if (std::adjacent_find(o.milestones.begin(), o.milestones.end(), std::greater_equal<>()) !=
                o.milestones.end())
              section.fail("milestones", "must be in ascending order, each step once");
          });
  return table;
}

Curve one_cycle_of(const OneCycleOptions& o, const CurveRange& range) {
  if (!range.warmup_key.empty())
    throw ConfigError(fmt::format(
        "{}: has no effect with name = \"one_cycle\", which rises from lr / div_factor by itself; remove it",
        range.warmup_key));
  const double peak_at = o.pct_start * static_cast<double>(range.total) - 1;
  const auto end = static_cast<double>(range.total - 1);
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

}  // namespace

CurveFactory constant() {
  static const auto fields = Fields<NoOptions>("schedule", "The base learning rate.").with("name", "constant");
  return {fields, NoOptions{},
          [](const NoOptions&, const CurveRange&) -> Curve { return [](std::int64_t) { return 1.0; }; }};
}

CurveFactory linear(DecayOptions options) {
  static const auto fields = decay_fields("linear", "A straight line down to min_lr_factor.");
  return {fields, options, [](const DecayOptions& o, const CurveRange& range) {
            return falling(range, o.min_lr_factor, [](double p) { return 1 - p; });
          }};
}

CurveFactory cosine(DecayOptions options) {
  static const auto fields = decay_fields("cosine", "Half a cosine wave down to min_lr_factor.");
  return {fields, options, [](const DecayOptions& o, const CurveRange& range) {
            return falling(range, o.min_lr_factor, [](double p) { return 0.5 * (1 + std::cos(std::numbers::pi * p)); });
          }};
}

CurveFactory polynomial(PolynomialOptions options) {
  static const auto decay = decay_fields("polynomial", "");
  static const auto fields =
      Fields<PolynomialOptions>("schedule", "A power of the remaining part of the training, down to min_lr_factor.")
          .with("name", "polynomial")
          .add_all(decay)
          .add("power", &PolynomialOptions::power, "The exponent of the decay; 1 is linear.", {.above = 0});
  return {fields, options, [](const PolynomialOptions& o, const CurveRange& range) {
            return falling(range, o.min_lr_factor, [power = o.power](double p) { return std::pow(1 - p, power); });
          }};
}

CurveFactory step_drops(StepDropsOptions options) {
  return {step_fields(), options, [](const StepDropsOptions& o, const CurveRange& range) -> Curve {
            return [every = o.step_size, gamma = o.gamma, warm = range.warmup](std::int64_t step) {
              return std::pow(gamma, static_cast<double>((step - warm) / every));
            };
          }};
}

CurveFactory milestone_drops(MilestoneDropsOptions options) {
  return {milestone_fields(), std::move(options), [](const MilestoneDropsOptions& o, const CurveRange& range) -> Curve {
            if (o.milestones.front() < range.warmup)
              throw ConfigError(
                  fmt::format("schedule.milestones: {} is before the end of the warm-up; it must be at least {}",
                              o.milestones.front(), range.warmup));
            return [at = o.milestones, gamma = o.gamma](std::int64_t step) {
              return std::pow(gamma, static_cast<double>(std::upper_bound(at.begin(), at.end(), step) - at.begin()));
            };
          }};
}

CurveFactory exponential(ExponentialOptions options) {
  static const auto fields =
      Fields<ExponentialOptions>("schedule", "A constant factor for each step.")
          .with("name", "exponential")
          .add("gamma", &ExponentialOptions::gamma, "The factor by which each step multiplies the learning rate.",
               {.max = 1, .above = 0});
  return {fields, options, [](const ExponentialOptions& o, const CurveRange& range) -> Curve {
            return [gamma = o.gamma, warm = range.warmup](std::int64_t step) {
              return std::pow(gamma, static_cast<double>(step - warm));
            };
          }};
}

CurveFactory warmup_stable_decay(WarmupStableDecayOptions options) {
  using O = WarmupStableDecayOptions;
  static const auto decay = decay_fields("wsd", "");
  static const auto fields =
      Fields<O>("schedule",
                "The base learning rate, then a decay in the last part of the training (warm-up, stable, decay).")
          .with("name", "wsd")
          .add_all(decay)
          .add("decay_ratio", &O::decay_ratio,
               "The fraction of all steps, at the end, in which the learning rate falls.", {.max = 1, .above = 0})
          .add("decay", &O::decay, "The form of the decay.", {.choices = {"linear", "cosine", "one_minus_sqrt"}});
  return {fields, std::move(options), [](const O& o, const CurveRange& range) -> Curve {
            const auto end = static_cast<double>(range.total), begin = end * (1 - o.decay_ratio);
            if (static_cast<double>(range.warmup) > begin)
              throw ConfigError(
                  fmt::format("schedule.decay_ratio: the decay begins at step {:.0f}, before the end of {} warm-up "
                              "steps; lower one of the two",
                              begin, range.warmup));
            return [begin, end, floor = o.min_lr_factor, form = o.decay](std::int64_t step) {
              const auto s = static_cast<double>(step);
              if (s < begin) return 1.0;
              const double q = progress(s, begin, end);
              const double left = form == "linear"   ? 1 - q
                                  : form == "cosine" ? 0.5 * (1 + std::cos(std::numbers::pi * q))
                                                     : 1 - std::sqrt(q);
              return floor + (1 - floor) * left;
            };
          }};
}

CurveFactory one_cycle(OneCycleOptions options) {
  using O = OneCycleOptions;
  static const auto fields =
      Fields<O>("schedule", "Rises once and falls once.")
          .with("name", "one_cycle")
          .add("div_factor", &O::div_factor, "The learning rate starts at lr / div_factor; lr is its peak.", {.min = 1})
          .add("final_div_factor", &O::final_div_factor,
               "The learning rate ends at its initial value / final_div_factor.", {.min = 1})
          .add("pct_start", &O::pct_start, "The fraction of all steps in which the learning rate rises.",
               {.above = 0, .below = 1});
  return {fields, options, one_cycle_of};
}

}  // namespace trireme::optim
