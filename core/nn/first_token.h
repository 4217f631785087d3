// FirstToken: of each sample the first token alone, such as the class token that a head reads.
#pragma once

#include "core/nn/layer.h"

namespace trireme::nn {

/// x [B, N, ...] -> [B, 1, ...]. A layer, so that a policy can find it: where ranks have slices, one of them has it.
class FirstToken : public Unary {
 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;
};

}  // namespace trireme::nn
