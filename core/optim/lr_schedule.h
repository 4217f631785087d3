// Learning-rate schedules: pure functions of the optimizer step, so a resumed run needs no saved state for them.
//
// With w warm-up steps, step s < w has base x (s+1)/w. After warm-up, the learning rate is base x a curve. With T steps
// of the training, p = (s-w)/(T-w) clamped to [0, 1] and m = min_lr_factor, step s has:
//   constant    1                              linear      m + (1-m)(1-p)
//   polynomial  m + (1-m)(1-p)^power           cosine      m + (1-m)(1+cos(pi p))/2
//   step        gamma^floor((s-w)/step_size)
//   multi_step  gamma^(milestones at or before s): milestones are optimizer steps, warm-up included
//   exponential gamma^(s-w)
//   wsd         1 until the last decay_ratio T steps, then m + (1-m) d(q) with q from 0 to 1 in these: d is 1-q, a half
//               cosine wave or 1-sqrt(q)
//   one_cycle   cosine arcs 1/div_factor -> 1 at step pct_start T - 1 -> 1/div_factor/final_div_factor; no warm-up
// Without warm-up these are the curves of torch.optim.lr_scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/factory.h"
#include "core/base/registry.h"

namespace trireme::optim {

/// The steps for which a curve is made.
struct CurveRange {
  std::int64_t warmup = 0;      ///< steps of warm-up, for which the curve is not used
  std::int64_t total = 1;       ///< steps of the training, at least 1
  std::string warmup_key = "";  ///< the key that set a warm-up, for errors; "": there is none
};
/// The learning rate of an optimizer step as a fraction of the base one.
using Curve = std::function<double(std::int64_t step)>;
/// Makes a curve: one of those below, or a program's own. @throws ConfigError
using CurveFactory = Factory<Curve(const CurveRange& range)>;
CurveFactory constant();

struct DecayOptions {
  double min_lr_factor = 0;  ///< at the end, as a fraction of the base learning rate
};
CurveFactory linear(DecayOptions options = {});
CurveFactory cosine(DecayOptions options = {});

struct PolynomialOptions : DecayOptions {
  double power = 1;
};
CurveFactory polynomial(PolynomialOptions options = {});

struct StepDropsOptions {
  std::int64_t step_size = 0;  ///< steps between two drops; required
  double gamma = 0.1;          ///< factor of each drop
};
CurveFactory step_drops(StepDropsOptions options = {});

struct MilestoneDropsOptions {
  std::vector<std::int64_t> milestones{};  ///< the steps of the drops, ascending; required
  double gamma = 0.1;
};
CurveFactory milestone_drops(MilestoneDropsOptions options = {});

struct ExponentialOptions {
  double gamma = 0.999;  ///< factor of each step
};
CurveFactory exponential(ExponentialOptions options = {});

/// Hu et al., "MiniCPM", 2024; the decay 1 - sqrt: Hagele et al., "Scaling laws and compute-optimal training beyond
/// fixed training durations", 2024.
struct WarmupStableDecayOptions : DecayOptions {
  double decay_ratio = 0.1;      ///< the last part of all steps, in which the learning rate falls
  std::string decay = "linear";  ///< linear | cosine | one_minus_sqrt
};
CurveFactory warmup_stable_decay(WarmupStableDecayOptions options = {});

/// Smith and Topin, "Super-Convergence", 2018.
struct OneCycleOptions {
  double div_factor = 25, final_div_factor = 1e4, pct_start = 0.3;
};
CurveFactory one_cycle(OneCycleOptions options = {});

/// Those that [schedule] name selects.
Registry<CurveFactory> all_curves();

struct LrScheduleOptions {
  std::optional<std::int64_t> warmup_steps{};
  double warmup_ratio = 0;
  CurveFactory curve = constant();
};
/// The keys of [schedule] that all schedules have.
const Fields<LrScheduleOptions>& lr_schedule_fields();
/// @throws ConfigError that names the key and its rule
void check_options(const LrScheduleOptions& options);

class LrSchedule {
 public:
  /// total_steps: of the whole training. @throws ConfigError as check_options(), for a warm-up beyond the end of
  /// training, or for a drop before the end of warm-up.
  LrSchedule(const LrScheduleOptions& options, double base_lr, std::int64_t total_steps);
  /// The learning rate of optimizer step `step`, which counts from 0.
  [[nodiscard]] double lr(std::int64_t step) const;
  [[nodiscard]] std::string describe() const;  ///< "cosine with 10 % warm-up"

 private:
  std::function<double(std::int64_t)> lr_;
  std::string text_;
};

}  // namespace trireme::optim
