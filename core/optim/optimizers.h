// All optimizers, each a factory with options; their learning-rate curves, and the base class for one of a program's
// own.
#pragma once

#include <vector>

#include "core/optim/fused_adamw.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/optim/slotwise.h"

namespace trireme::optim {

/// Adam with decoupled weight decay (AdamW) or with L2; one fused LibTorch kernel per group, CPU and CUDA.
/// Method: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
struct HybridAdamOptions {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool adamw = true;  ///< decoupled weight decay; false: Adam with L2
};
/// State of each slot: exp_avg and exp_avg_sq (dtype and layout of its value), step (float32 0-dim on the slot's
/// device).
OptimizerFactory hybrid_adam(HybridAdamOptions options);

/// SGD with momentum, dampening, Nesterov momentum and L2 weight decay, as in torch.optim.SGD.
/// Method: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
  double dampening = 0;
};
/// State of each slot: momentum_buffer (if momentum is not 0), and with dampening also step (float32 0-dim), because
/// the first gradient enters the buffer undampened and only the device knows whether a step was skipped.
OptimizerFactory sgd(SgdOptions options = {});

/// The sign of an interpolation between momentum and gradient.
/// Method: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
struct LionOptions {
  std::vector<double> betas = {0.9, 0.99};
};
/// State of each slot: exp_avg. Weight decay is decoupled, as in AdamW.
OptimizerFactory lion(LionOptions options = {});

// LAMB and LARS, for large batches: the update of each parameter is scaled by a trust ratio, which depends on the norms
// of the whole parameter and of its update; ranks that hold slices of a parameter add up their squares.

/// Method: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020.
struct LambOptions {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-6;
  bool always_adapt = false;  ///< scale parameters without weight decay too
};
/// State of each slot: exp_avg, exp_avg_sq, step. With weight w and u = m / (sqrt(v) + eps) + decay w, where m and v
/// are Adam's bias-corrected averages: w -= lr |w| / |u| u.
OptimizerFactory lamb(LambOptions options = {});

/// Method: You et al., "Large batch training of convolutional networks", 2017.
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
