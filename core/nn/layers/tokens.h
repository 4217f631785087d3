// Layers that mark what a head reads, so that a policy can match them where ranks hold slices of the tokens.
#pragma once

#include "core/nn/layer.h"

namespace trireme::nn {

/// x [B, N, ...] -> [B, 1, ...]: the first token of each sample, such as the class token. With sharded tokens, one rank
/// has it.
class FirstToken : public Unary {
 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;
};

/// x [B, N, ...] unchanged: the place in front of a head that reads all tokens. With sharded tokens they are gathered
/// here.
class AllTokens : public Unary {
 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;
};

}  // namespace trireme::nn
