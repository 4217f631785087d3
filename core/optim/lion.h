// Lion: the sign of an interpolation between momentum and gradient.
// Method: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
#pragma once

#include "core/optim/optimizer.h"

namespace trireme::optim {

struct LionOptions {
  std::vector<double> betas = {0.9, 0.99};
};
/// State of each slot: exp_avg. Weight decay is decoupled, as in AdamW.
OptimizerFactory lion(LionOptions options = {});

}  // namespace trireme::optim
