// Layers that mark what a head reads, so that a policy can match them where ranks hold slices of the tokens.
#pragma once

#include "core/nn/layer.h"

namespace trireme::nn {

/// What a head reads of x [B, N, ...].
class HeadTokens : public Unary {
 public:
  explicit HeadTokens(bool only_first) : only_first_(only_first) {}
  [[nodiscard]] bool only_first() const { return only_first_; }

 protected:
  at::Tensor compute(const at::Tensor& x, const Context&) override { return only_first_ ? x.narrow(1, 0, 1) : x; }

 private:
  bool only_first_;
};

/// x [B, N, ...] -> [B, 1, ...]: the first token of each sample, such as the class token. With sharded tokens, one rank
/// has it.
struct FirstToken : HeadTokens {
  FirstToken() : HeadTokens(true) {}
};

/// x [B, N, ...] unchanged: the place in front of a head that reads all tokens. With sharded tokens they are gathered
/// here.
struct AllTokens : HeadTokens {
  AllTokens() : HeadTokens(false) {}
};

}  // namespace trireme::nn
