// Attention over slices of the tokens: keys and values are passed around the ring of ranks, and each rank updates the
// running softmax of its own queries. Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite
// Context", 2023.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"
#include "core/nn/layers/attention.h"

namespace trireme::shardformer {

struct RingAttention {
  comm::Group group;
  std::int64_t query_tokens, tokens;     ///< number of queries and of keys of a full sample
  nn::AttentionPattern pattern{};        ///< of all tokens. @pre causal only if query_tokens == tokens
  const nn::Dropout* dropout = nullptr;  ///< of the probabilities, with the mask that a single process would draw;
                                         ///< null: none
  nn::Context context{};                 ///< the key of the dropout mask
  std::int64_t first_head = 0;           ///< index in the layer of the first head here, for the mask
  bool overlap = true;                   ///< false: each exchange completes before the next block
};

/// q [B, heads, this rank's slice of the query tokens, d], k and v [B, key-value heads, this rank's slice of the
/// tokens, d] -> like q: softmax(q k^T / sqrt(d)) v over all tokens. The next slice is received while the current one
/// is used. Saved for backward: the inputs, the output and the log-sum-exp of each query; probabilities are recomputed.
/// Half precision: products use it; the running sums and the gradients that are passed around are in float32.
/// Communication per rank, in units of the full k: forward 2; backward 2, and 2 of gradients in the dtype of the sums.
/// The 2 of the forward and the first 2 of the backward pass each exclude the rank's own slice.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const RingAttention& how);

}  // namespace trireme::shardformer
