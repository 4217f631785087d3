// Dynamic loss scale for fp16, all on the device: no host synchronisation in a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/config/run_config.h"

namespace trireme::optim {

/// Scale starts at initial_scale. A step with a non-finite gradient is skipped (found_inf != 0); after `hysteresis`
/// such steps (counted down; restored after a growth) the scale is multiplied by backoff_factor, never below
/// min_scale. After growth_interval good steps in a row it is multiplied by growth_factor, never above max_scale.
class LossScaler {
 public:
  /// enabled: fp16. Else scale 1 for ever, and unscale() does not touch the gradients.
  LossScaler(bool enabled, const config::TrainOptions& options, c10::Device device);

  [[nodiscard]] bool enabled() const { return enabled_; }
  /// loss x scale
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;
  /// 1 / scale, 0-dim float32 on the device: for a caller that unscales by a factor of its own. @pre enabled()
  [[nodiscard]] at::Tensor inverse() const;
  /// Divides the gradients by the scale in place and returns found_inf: float32 0-dim, 1 when any element is not
  /// finite. The caller reduces it over ranks (max) when their gradients differ. When disabled: undefined.
  at::Tensor unscale(const std::vector<at::Tensor>& gradients);
  /// After the step, with the (reduced) found_inf.
  void update(const at::Tensor& found_inf);
  /// Synchronises: for the console and the checkpoint, not for the step.
  [[nodiscard]] double scale_value() const;
  [[nodiscard]] std::int64_t skipped_steps() const;

  /// {scale, growth_tracker, hysteresis_left, skipped} as one float64 CPU tensor.
  [[nodiscard]] at::Tensor state() const;
  void set_state(const at::Tensor& state);

 private:
  bool enabled_;
  config::TrainOptions options_;
  at::Tensor scale_, growth_tracker_, hysteresis_left_, skipped_;
};

}  // namespace trireme::optim
