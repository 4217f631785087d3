// Attention over slices of the tokens: keys and values travel around the ring of ranks, and each rank keeps the running
// softmax of its own queries. Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"
#include "core/nn/dropout.h"

namespace trireme::shardformer {

struct RingAttention {
  comm::Group group;
  std::int64_t query_tokens, tokens;     ///< of a whole sample: queries, and keys
  bool causal = false;                   ///< query i takes from keys 0 .. i alone. @pre asking == tokens
  const nn::Dropout* dropout = nullptr;  ///< of the probabilities: the mask that one process draws; null: none
  nn::Context context{};                 ///< of the dropout
  std::int64_t first_head = 0;           ///< number of the first head here among the layer's, for the mask
  bool overlap = true;                   ///< false: each hop is waited for at once
};

/// q [B, heads, this rank's slice of the asking tokens, d], k and v [B, heads, this rank's slice of the tokens, d] ->
/// as q: softmax(q k^T / sqrt(d)) v over all tokens. The next slice is on its way while one is computed with. Kept for
/// backward: the inputs, the output and one number a query; probabilities are computed again.
/// Half precision: products in it, the running sums and the travelling gradients in float32.
/// Traffic a rank, in elements of the whole k: forward 2; backward 2, and 2 of gradients in the dtype of the sums. The
/// first and second but for one slice, which never leaves.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const RingAttention& how);

}  // namespace trireme::shardformer
