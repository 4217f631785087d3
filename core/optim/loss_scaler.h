// Dynamic loss scale for fp16, computed on the device: no host synchronisation in a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::optim {

struct LossScaleOptions {
  double initial_scale = 65536, min_scale = 1, max_scale = 4294967296.0, growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 1000, hysteresis = 2;
};

/// The scale starts at initial_scale. A step with a non-finite gradient is skipped (found_inf != 0); after `hysteresis`
/// such steps (counted down; restored after a growth) the scale is multiplied by backoff_factor, but never below
/// min_scale. After growth_interval consecutive good steps it is multiplied by growth_factor, but never above
/// max_scale.
class LossScaler {
 public:
  /// enabled: for fp16. Otherwise the scale is always 1, and unscale() does not touch the gradients.
  LossScaler(bool enabled, const LossScaleOptions& options, c10::Device device);

  [[nodiscard]] bool enabled() const { return enabled_; }
  /// The scale, 0-dim float32 on the device; update() changes it in place. Undefined when disabled.
  [[nodiscard]] const at::Tensor& value() const { return scale_; }
  /// Returns loss * scale.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;
  /// 1 / scale, 0-dim float32 on the device, for a caller that unscales by its own factor. @pre enabled()
  [[nodiscard]] at::Tensor inverse() const;
  /// Divides the gradients by the scale in place and returns found_inf: float32 0-dim, 1 if any element is not finite.
  /// If the gradients of ranks differ, the caller reduces it over the ranks (max). Undefined when disabled.
  at::Tensor unscale(const std::vector<at::Tensor>& gradients);
  /// Call after the step with the (reduced) found_inf.
  void update(const at::Tensor& found_inf);

  /// {scale, growth_tracker, hysteresis_left, skipped} as one float64 CPU tensor. Synchronises the host: for
  /// checkpoints, not for use in a step.
  [[nodiscard]] at::Tensor state() const;
  void set_state(const at::Tensor& state);

 private:
  bool enabled_;
  LossScaleOptions options_;
  at::Tensor scale_, growth_tracker_, hysteresis_left_, skipped_;
};

}  // namespace trireme::optim
