#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/base/error.h"
#include "core/optim/optimizers.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

/// The part that LAMB and LARS share.
class TrustRatioOptimizer : public detail::SlotOptimizer {
 public:
  [[nodiscard]] bool needs_slice_sums() const final { return true; }
  at::Tensor slice_sums(const at::Tensor& found_inf) final {
    const at::NoGradGuard no_grad;
    pending_.clear();
    std::vector<at::Tensor> squares;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& group = groups_[g];
      for (std::size_t s = 0; s < group.slots.size(); ++s) {
        const auto& slot = group.slots[s];
        auto value = slot.value.detach();
        squares.push_back(at::zeros({2}, value.options().dtype(at::kDouble)));
        if (!slot.grad.defined()) continue;
        auto& state = states_.of(group, g, s);
        detail::Undo undo(slot, value, state, found_inf);
        auto along = direction(value, detail::gradient_for(slot), state, group.weight_decay);
        const auto norm = [](const at::Tensor& of) { return at::linalg_vector_norm(of, 2, {}, false, at::kDouble); };
        squares.back() = at::stack({norm(value), norm(along)}).square_();
        pending_.push_back({g, static_cast<std::int64_t>(squares.size()) - 1, std::move(value), std::move(along),
                            &state, std::move(undo)});
      }
    }
    sums_ = squares.empty() ? at::zeros({0, 2}, at::kDouble) : at::stack(squares);
    return sums_;
  }
  void step(double lr, const at::Tensor& found_inf) final {
    const at::NoGradGuard no_grad;
    if (!sums_.defined()) slice_sums(found_inf);  // the slots are whole parameters
    const auto norms = sums_.sqrt();
    for (auto& [g, row, value, along, state, undo] : pending_) {
      const auto& group = groups_[g];
      const auto of_value = norms.select(0, row).select(0, 0), of_direction = norms.select(0, row).select(0, 1);
      auto factor = at::ones_like(of_value);
      if (always_adapt_ || group.weight_decay != 0)
        factor = ratio(of_value, of_direction, group.weight_decay)
                     .where(of_value.gt(0).logical_and(of_direction.gt(0)), factor);
      apply(value, along, *state, factor.to(value.scalar_type()), lr * group.lr_scale, group.weight_decay);
      undo.finish();
    }
    pending_.clear();
    sums_ = at::Tensor();
  }
  [[nodiscard]] std::string describe() const final { return text_; }

 protected:
  /// `begin`, `own`: of the description. @throws ConfigError when nothing has a trust ratio
  TrustRatioOptimizer(std::vector<ParamGroup> groups, std::vector<std::string> state_keys, bool always_adapt,
                      const OptimizerOptions& common, std::string_view begin, std::string_view own)
      : SlotOptimizer(std::move(groups), std::move(state_keys)),
        always_adapt_(always_adapt),
        text_(detail::description(begin, common, own, groups_)) {
    check_adapts(common);
  }
  /// Takes the gradient into `state` and returns the tensor whose norm is compared with the weight's.
  [[nodiscard]] virtual at::Tensor direction(const at::Tensor& value, const at::Tensor& grad,
                                             std::vector<at::Tensor>& state, double weight_decay) const = 0;
  /// The trust ratio for norms that are not zero, 0-dim.
  [[nodiscard]] virtual at::Tensor ratio(const at::Tensor& value_norm, const at::Tensor& direction_norm,
                                         double weight_decay) const = 0;
  virtual void apply(at::Tensor& value, const at::Tensor& direction, std::vector<at::Tensor>& state,
                     const at::Tensor& ratio, double lr, double weight_decay) const = 0;

 private:
  struct Pending {  ///< a slot whose direction is known, and whose update waits for the norms
    std::size_t group;
    std::int64_t row;  ///< of sums_
    at::Tensor value, direction;
    std::vector<at::Tensor>* state;
    detail::Undo undo;
  };
  /// Without weight decay nothing has a trust ratio, unless always_adapt says otherwise.
  void check_adapts(const OptimizerOptions& common) const {
    bool decays = always_adapt_ || common.weight_decay > 0;
    for (const auto& group : common.groups) decays = decays || group.weight_decay.value_or(0) > 0;
    if (!decays)
      throw ConfigError(fmt::format(
          "optimizer.name: \"{}\" scales only the updates of parameters with weight decay, and none has it; "
          "set optimizer.weight_decay, or always_adapt = true",
          common.method.name()));
  }
  bool always_adapt_;
  std::string text_;
  std::vector<Pending> pending_;
  at::Tensor sums_;  ///< of squares: {of the value, of the direction} by slot; undefined between steps
};

class Lamb final : public TrustRatioOptimizer {
 public:
  Lamb(const LambOptions& options, const OptimizerOptions& common, std::vector<ParamGroup> groups)
      : TrustRatioOptimizer(std::move(groups), {"exp_avg", "exp_avg_sq", "step"}, options.always_adapt, common, "LAMB(",
                            fmt::format(", betas {}/{}", options.betas[0], options.betas[1])),
        options_(options) {}

 protected:
  at::Tensor direction(const at::Tensor& value, const at::Tensor& grad, std::vector<at::Tensor>& state,
                       double weight_decay) const override {
    auto &exp_avg = state[0], &exp_avg_sq = state[1], &step = state[2];
    exp_avg.lerp_(grad, 1 - options_.betas[0]);
    exp_avg_sq.mul_(options_.betas[1]).addcmul_(grad, grad, 1 - options_.betas[1]);
    step.add_(1);
    // 1 - beta^step, in double: the number of steps is known only on the device.
    const auto correction = [&step](double beta) { return 1 - at::pow(beta, step.to(at::kDouble)); };
    const auto type = value.scalar_type();
    auto out = (exp_avg_sq / correction(options_.betas[1]).to(type)).sqrt_().add_(options_.eps);
    out = exp_avg / correction(options_.betas[0]).to(type) / out;
    return weight_decay != 0 ? out.add_(value, weight_decay) : out;
  }
  at::Tensor ratio(const at::Tensor& value_norm, const at::Tensor& direction_norm, double) const override {
    return value_norm / direction_norm;
  }
  void apply(at::Tensor& value, const at::Tensor& along, std::vector<at::Tensor>&, const at::Tensor& ratio, double lr,
             double) const override {
    value.sub_(along * ratio, lr);
  }

 private:
  LambOptions options_;
};

class Lars final : public TrustRatioOptimizer {
 public:
  Lars(const LarsOptions& options, const OptimizerOptions& common, std::vector<ParamGroup> groups)
      : TrustRatioOptimizer(std::move(groups), keys_of(options), options.always_adapt, common, "LARS(",
                            fmt::format(", {}momentum {}, trust coefficient {}", options.nesterov ? "Nesterov " : "",
                                        options.momentum, options.trust_coefficient)),
        options_(options) {}

 protected:
  at::Tensor direction(const at::Tensor&, const at::Tensor& grad, std::vector<at::Tensor>&, double) const override {
    return grad;
  }
  at::Tensor ratio(const at::Tensor& value_norm, const at::Tensor& direction_norm, double weight_decay) const override {
    return options_.trust_coefficient * value_norm / (direction_norm + weight_decay * value_norm + options_.eps);
  }
  void apply(at::Tensor& value, const at::Tensor& grad, std::vector<at::Tensor>& state, const at::Tensor& ratio,
             double lr, double weight_decay) const override {
    const auto scaled = (weight_decay != 0 ? grad.add(value, weight_decay) : grad) * ratio;
    if (state.empty()) {
      value.sub_(scaled, lr);
      return;
    }
    auto& buffer = state[0];
    buffer.mul_(options_.momentum).add_(scaled);
    value.sub_(options_.nesterov ? scaled.add(buffer, options_.momentum) : buffer, lr);
  }

 private:
  static std::vector<std::string> keys_of(const LarsOptions& options) {
    return options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
  }
  LarsOptions options_;
};

constexpr const char* kAlwaysAdaptText =
    "Scale the updates of parameters without weight decay too. Usually these are biases and norms, which train as "
    "without the scaling.";

}  // namespace

OptimizerFactory lamb(LambOptions options) {
  using O = LambOptions;
  static const auto fields =
      Fields<O>("optimizer", "Adam with a trust ratio for each parameter, for large batches.")
          .with("name", "lamb")
          .add("betas", &O::betas, "Decay rates of the running averages of the gradient and of its square.",
               {.min = 0, .below = 1, .length = 2})
          .add("eps", &O::eps, "Added to the denominator of the update, for numerical stability.", {.min = 0})
          .add("always_adapt", &O::always_adapt, kAlwaysAdaptText);
  return detail::factory_of<Lamb>(fields, std::move(options));
}

OptimizerFactory lars(LarsOptions options) {
  using O = LarsOptions;
  static const auto fields =
      Fields<O>("optimizer", "Gradient descent with momentum and a trust ratio for each parameter, for large batches.")
          .with("name", "lars")
          .add("momentum", &O::momentum, "Momentum factor.", {.min = 0, .below = 1})
          .add("trust_coefficient", &O::trust_coefficient, "Factor of the ratio of the norms.", {.above = 0})
          .add("eps", &O::eps, "Added to the denominator of the trust ratio.", {.min = 0})
          .add("nesterov", &O::nesterov, "Use Nesterov momentum; needs momentum above 0.")
          .add("always_adapt", &O::always_adapt, kAlwaysAdaptText)
          .rule([](const O& o, const CheckedSection& section) {
            if (o.nesterov && o.momentum == 0)
              section.fail("nesterov", "needs momentum above 0; set optimizer.momentum, or remove nesterov");
          });
  return detail::factory_of<Lars>(fields, options);
}

}  // namespace trireme::optim
