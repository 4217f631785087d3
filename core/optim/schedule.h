// Learning-rate schedules: pure functions of the optimizer step, so that a resumed run needs no state of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/config/run_config.h"

namespace trireme::optim {

class LrSchedule {
 public:
  /// total_steps: of the whole training. @throws ConfigError for warm-up beyond it, or steps and ratio both given.
  LrSchedule(const config::ScheduleOptions& options, double base_lr, std::int64_t total_steps);
  /// The learning rate of optimizer step `step`, from 0.
  [[nodiscard]] double lr(std::int64_t step) const;
  [[nodiscard]] std::string describe() const;  ///< "cosine with 10 % warm-up"

 private:
  std::function<double(std::int64_t)> lr_;
  std::string text_;
};

}  // namespace trireme::optim
