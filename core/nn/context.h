// What a forward pass must know and no global may hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::nn {

using Tensors = std::vector<at::Tensor>;

struct Context {
  bool training = false;
  std::uint64_t seed = 0;   ///< of the run: dropout masks are keyed by (seed, step, layer, sample, element)
  std::int64_t step = 0;    ///< optimizer step, from 0
  at::Tensor sample_ids{};  ///< int64 [B], on the CPU or where masks are drawn: each sample's global number
  /// Of a sample, in what layers are given now, whatever slice of them a rank holds; 0: the model does not say.
  std::int64_t tokens = 0;

  /// For the layers after one that leaves another number of tokens.
  [[nodiscard]] Context with_tokens(std::int64_t count) const {
    auto context = *this;
    context.tokens = count;
    return context;
  }
};

}  // namespace trireme::nn
