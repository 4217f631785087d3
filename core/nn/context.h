// The values that a forward pass depends on besides its inputs and the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/nn/named_tensors.h"

namespace trireme::nn {

using Tensors = std::vector<at::Tensor>;

struct Context {
  bool training = false;
  std::uint64_t seed = 0;   ///< the run's seed: dropout masks are keyed by (seed, step, layer, sample, element)
  std::int64_t step = 0;    ///< optimizer step, from 0
  at::Tensor sample_ids{};  ///< int64 [B]: each sample's global number, on the CPU or where masks are drawn
  /// A sample's full token count, before sequence parallelism slices it; 0 when the model has no tokens.
  std::int64_t tokens = 0;
  /// Inputs that every block can read, such as a padding mask: those that Model::side_input_names() lists and the data
  /// have, [B, ...] each, with all tokens of the batch.
  NamedTensors side{};

  /// The same context for layers whose input has another number of tokens.
  [[nodiscard]] Context with_tokens(std::int64_t count) const {
    auto context = *this;
    context.tokens = count;
    return context;
  }
};

}  // namespace trireme::nn
