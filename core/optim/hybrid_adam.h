// HybridAdam: Adam with decoupled weight decay (AdamW) or with L2; one fused LibTorch kernel per group, CPU and CUDA.
// Method: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
#pragma once

#include "core/optim/optimizer.h"

namespace trireme::optim {

/// State of each slot: exp_avg and exp_avg_sq (dtype and layout of its value), step (float32 0-dim on the slot's
/// device).
/// Learning rate and eps stay double up to the kernel, so float64 parameters are updated in true double precision.
class HybridAdam final : public Optimizer {
 public:
  HybridAdam(const config::OptimizerOptions& options, std::vector<ParamGroup> groups);

  void step(double lr, const at::Tensor& found_inf = {}) override;
  std::vector<NamedState> state() override;
  [[nodiscard]] std::int64_t state_bytes() const override;
  [[nodiscard]] std::string describe() const override;

 private:
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq, step;  ///< undefined until the slot's first gradient
  };
  static void make_moments(const at::Tensor& value, Moments& moments);

  config::OptimizerOptions options_;
  std::vector<std::vector<Moments>> moments_;  ///< [group][slot]
};

}  // namespace trireme::optim
