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
/// State of each slot: exp_avg and exp_avg_sq (dtype and layout of its value), step (float32 0-dim on the slot's
/// device).
OptimizerFactory hybrid_adam(HybridAdamOptions options);

}  // namespace trireme::optim
