// Learning-rate schedules: pure functions of the optimizer step, so a resumed run needs no saved state for them.
//
// With w warm-up steps, step s < w has base x (s+1)/w. After warm-up, the learning rate is base x a curve of s, w and
// the number of steps of the training (core/optim/curves.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

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
/// Makes a curve: cosine() and others of curves.h, or a program's own. @throws ConfigError
using CurveFactory = Factory<Curve(const CurveRange& range)>;
CurveFactory constant();
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
