// HybridAdam: Adam with decoupled weight decay (AdamW) or with L2; one fused LibTorch kernel per group, CPU and CUDA.
// Method: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
#pragma once

#include "core/optim/optimizer.h"

namespace trireme::optim {

struct HybridAdamOptions {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool adamw = true;  ///< decoupled weight decay; false: Adam with L2
};
OptimizerFactory hybrid_adam(HybridAdamOptions options);

/// State of each slot: exp_avg and exp_avg_sq (dtype and layout of its value), step (float32 0-dim on the slot's
/// device).
/// Learning rate and eps stay double up to the kernel, so float64 parameters are updated in true double precision.
class HybridAdam final : public Optimizer {
 public:
  HybridAdam(const HybridAdamOptions& options, double base_lr, double weight_decay, std::vector<ParamGroup> groups);

  void step(double lr, const at::Tensor& found_inf = {}) override;
  std::vector<NamedState> state() override;
  [[nodiscard]] std::int64_t state_bytes() const override;
  [[nodiscard]] std::string describe() const override;

 private:
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq, step;  ///< undefined until the slot's first gradient
  };
  static void make_moments(const at::Tensor& value, Moments& moments);

  HybridAdamOptions options_;
  double base_lr_, weight_decay_;              ///< for describe()
  std::vector<std::vector<Moments>> moments_;  ///< [group][slot]
};

}  // namespace trireme::optim
