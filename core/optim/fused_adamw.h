// FusedAdamW: torch::optim::AdamW whose step is one call of LibTorch's fused kernel for all parameters of a kind, as
// AdamW(fused=True) of PyTorch for Python, which LibTorch's C++ class lacks. Options, state, saving and loading are
// those of torch::optim::AdamW. The updates are those of hybrid_adam(), bit for bit.
#pragma once

#include <torch/optim/adamw.h>

namespace trireme::optim {

class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  /// Parameters without a gradient are left as they are. @throws UsageError for a gradient that is sparse, or for
  /// amsgrad
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace trireme::optim
