// Dropout of attention probabilities: which element of a layer's [heads, queries, keys] a probability is, so that every
// layout draws the same mask.
#pragma once

#include <cstdint>

#include "core/nn/layers/dropout.h"
#include "core/shard/placement.h"

namespace trireme::nn {

/// A part of a layer's probabilities.
struct ProbabilitySlice {
  std::int64_t first_head = 0;
  shard::Range queries, keys;         ///< positions in the sample
  std::int64_t query_tokens, tokens;  ///< the number of queries and of keys of the full sample
  /// The sample may have been padded, and `tokens` is then the length of the batch, which differs between layouts.
  bool padded = false;
};

/// Bool, of the shape of `probabilities` [B, heads, queries, keys]: true for those that are kept. Full samples without
/// padding have the mask of a Dropout of [heads, query_tokens, tokens]. With padding, an element is its head, its
/// query's and its key's position. @throws UsageError when the context lacks sample ids, or for more than 2^20 padded
/// tokens
at::Tensor probability_mask(const Dropout& dropout, const Context& context, const at::Tensor& probabilities,
                            const ProbabilitySlice& slice);

}  // namespace trireme::nn
