// LAMB and LARS: optimizers for large batches. The update of each parameter is scaled by a trust ratio, which depends
// on the norms of the whole parameter and of its update; ranks that hold slices of a parameter add up their squares.
// Methods: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020 (LAMB); You
// et al., "Large batch training of convolutional networks", 2017 (LARS).
#pragma once

#include "core/optim/optimizer.h"

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

}  // namespace trireme::optim
