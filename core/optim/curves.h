// The curves of a learning rate after its warm-up, as fractions of the base one. With w warm-up steps, T steps of the
// training, p = (s-w)/(T-w) clamped to [0, 1] and m = min_lr_factor, step s has:
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
#include <string>
#include <vector>

#include "core/optim/lr_schedule.h"

namespace trireme::optim {

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

}  // namespace trireme::optim
