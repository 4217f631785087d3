// FirstToken: selects the first token of each sample, such as the class token that a head reads.
#pragma once

#include "core/nn/layer.h"

namespace trireme::nn {

/// x [B, N, ...] -> [B, 1, ...]. It is a layer so that a policy can match it: with sharded tokens, one rank has the
/// token.
class FirstToken : public Unary {
 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;
};

}  // namespace trireme::nn
