// SGD with momentum, dampening, Nesterov momentum and L2 weight decay, as in torch.optim.SGD.
// Method: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
#pragma once

#include "core/optim/optimizer.h"

namespace trireme::optim {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
  double dampening = 0;
};
/// State of each slot: momentum_buffer (if momentum is not 0), and with dampening also step (float32 0-dim), because
/// the first gradient enters the buffer undampened and only the device knows whether a step was skipped.
OptimizerFactory sgd(SgdOptions options = {});

}  // namespace trireme::optim
