// LAMB and LARS: optimizers for large batches. The update of each parameter is scaled by a trust ratio, which depends
// on the norms of the whole parameter and of its update; ranks that hold slices of a parameter add up their squares.
// Methods: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020 (LAMB); You
// et al., "Large batch training of convolutional networks", 2017 (LARS).
#pragma once

#include "core/optim/optimizer.h"
#include "core/optim/slots.h"

namespace trireme::optim {

struct LambOptions {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-6;
  bool always_adapt = false;  ///< scale parameters without weight decay too
};
/// State of each slot: exp_avg, exp_avg_sq, step. With weight w and u = m / (sqrt(v) + eps) + decay w, where m and v
/// are Adam's bias-corrected averages: w -= lr |w| / |u| u.
OptimizerFactory lamb(LambOptions options = {});

struct LarsOptions {
  double momentum = 0.9;
  double trust_coefficient = 0.001;
  double eps = 1e-8;
  bool nesterov = false;
  bool always_adapt = false;
};
/// State of each slot: momentum_buffer b, if momentum is not 0. With t = trust_coefficient |w| / (|g| + decay |w| +
/// eps): b = momentum b + t (g + decay w), w -= lr b.
OptimizerFactory lars(LarsOptions options = {});

/// The part that LAMB and LARS share.
class TrustRatioOptimizer : public Optimizer {
 public:
  [[nodiscard]] bool needs_slice_sums() const final { return true; }
  at::Tensor slice_sums(const at::Tensor& found_inf) final;
  void step(double lr, const at::Tensor& found_inf = {}) final;
  std::vector<NamedState> state() final { return states_.all(groups_); }
  [[nodiscard]] std::int64_t state_bytes() const final { return states_.bytes(); }

 protected:
  TrustRatioOptimizer(std::vector<ParamGroup> groups, std::vector<std::string> state_keys, bool always_adapt);
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
  detail::SlotStates states_;
  bool always_adapt_;
  std::vector<Pending> pending_;
  at::Tensor sums_;  ///< of squares: {of the value, of the direction} by slot; undefined between steps
};

}  // namespace trireme::optim
