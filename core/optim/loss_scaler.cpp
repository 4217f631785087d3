#include "core/optim/loss_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/optim/slots.h"

namespace trireme::optim {

LossScaler::LossScaler(bool enabled, const LossScaleOptions& options, c10::Device device)
    : enabled_(enabled), options_(options) {
  if (!enabled_) return;
  const auto on_device = at::TensorOptions().device(device);
  scale_ = at::full({}, options_.initial_scale, on_device.dtype(at::kFloat));
  growth_tracker_ = at::zeros({}, on_device.dtype(at::kLong));
  hysteresis_left_ = at::full({}, options_.hysteresis, on_device.dtype(at::kLong));
  skipped_ = at::zeros({}, on_device.dtype(at::kLong));
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  if (!enabled_) return loss;
  return loss.mul(scale_);
}

at::Tensor LossScaler::inverse() const { return scale_.to(at::kDouble).reciprocal().to(at::kFloat); }

at::Tensor LossScaler::unscale(const std::vector<at::Tensor>& gradients) {
  if (!enabled_) return {};
  const at::NoGradGuard no_grad;
  auto found_inf = at::zeros({}, scale_.options());
  detail::ByKind<std::vector<at::Tensor>> kinds;
  for (const auto& gradient : gradients)
    if (gradient.defined()) kinds[detail::kind_of(gradient)].push_back(gradient);
  for (auto& [kind, list] : kinds) {
    TRIREME_CHECK(kind.first == scale_.device(), "a gradient is on {}, but the loss scale is on {}", kind.first.str(),
                  scale_.device().str());
    at::_amp_foreach_non_finite_check_and_unscale_(list, found_inf, inverse());
  }
  return found_inf;
}

void LossScaler::update(const at::Tensor& found_inf) {
  if (!enabled_) return;
  const at::NoGradGuard no_grad;
  const auto found = found_inf.ne(0);
  const auto left = at::where(found, hysteresis_left_.sub(1).clamp_min(0), hysteresis_left_);
  const auto good = growth_tracker_.add(1).masked_fill(found, 0);
  const auto shrink = found.logical_and(left.eq(0));
  const auto grow = good.ge(options_.growth_interval);
  const auto smaller = scale_.mul(options_.backoff_factor).clamp_min(options_.min_scale);
  const auto larger = scale_.mul(options_.growth_factor).clamp_max(options_.max_scale);
  scale_.copy_(at::where(shrink, smaller, at::where(grow, larger, scale_)));
  growth_tracker_.copy_(good.masked_fill(grow, 0));
  hysteresis_left_.copy_(left.masked_fill(grow, options_.hysteresis));
  skipped_.add_(found);
}

at::Tensor LossScaler::state() const {
  if (!enabled_) return at::tensor({1.0, 0.0, 0.0, 0.0}, at::kDouble);
  return at::tensor(
      {static_cast<double>(scale_.item<float>()), static_cast<double>(growth_tracker_.item<std::int64_t>()),
       static_cast<double>(hysteresis_left_.item<std::int64_t>()), static_cast<double>(skipped_.item<std::int64_t>())},
      at::kDouble);
}

void LossScaler::set_state(const at::Tensor& state) {
  if (!enabled_) return;
  if (state.numel() != 4 || state.scalar_type() != at::kDouble || !(state[0].item<double>() > 0))
    throw CheckpointError(
        "the loss scale's state is not {scale, growth, hysteresis, skipped}; the checkpoint is not of "
        "an fp16 run of this version");
  scale_.copy_(state[0]);
  growth_tracker_.copy_(state[1]);
  hysteresis_left_.copy_(state[2]);
  skipped_.copy_(state[3]);
}

}  // namespace trireme::optim
