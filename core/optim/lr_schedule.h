// Learning-rate schedules: pure functions of the optimizer step, so a resumed run needs no saved state for them.
//
// With w warm-up steps, step s < w has base x (s+1)/w. After warm-up, with p = (s-w)/(T-w) clamped to [0, 1], T the
// number of steps of the training and m = min_lr_factor:
//   constant    base                               linear   base x (m + (1-m)(1-p))
//   polynomial  base x (m + (1-m)(1-p)^power)      cosine   base x (m + (1-m)(1+cos(pi p))/2)
//   step        base x gamma^floor((s-w)/step_size)
//   multi_step  base x gamma^(milestones at or before s): milestones are optimizer steps, warm-up included
//   one_cycle   cosine arcs base/div_factor -> base at step pct_start T - 1 -> base/div_factor/final_div_factor
// Without warm-up these are the curves of torch.optim.lr_scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/config/run_config.h"

namespace trireme::optim {

class LrSchedule {
 public:
  /// total_steps: of the whole training. @throws ConfigError for what config::check_options() rejects, for a warm-up
  /// beyond the end of training, or for a drop before the end of warm-up.
  LrSchedule(const config::LrScheduleOptions& options, double base_lr, std::int64_t total_steps);
  /// The learning rate of optimizer step `step`, which counts from 0.
  [[nodiscard]] double lr(std::int64_t step) const;
  [[nodiscard]] std::string describe() const;  ///< "cosine with 10 % warm-up"

 private:
  std::function<double(std::int64_t)> lr_;
  std::string text_;
};

}  // namespace trireme::optim
