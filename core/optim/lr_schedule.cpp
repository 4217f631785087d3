#include "core/optim/lr_schedule.h"

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

}  // namespace trireme::optim
