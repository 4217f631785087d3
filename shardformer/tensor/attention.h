// Attention whose heads, and whose tokens, are sharded over ranks.
//
// Keys and values of heads that are fewer than the ranks: a rank holds some rows of their weights, and needs the heads
// of its queries, which other ranks need too. The weights are all-gathered in the forward pass, and their gradients
// reduce-scattered: together as much as an all-reduce of the gradients.
#pragma once

#include "shardformer/tensor/features.h"

namespace trireme::nn {
class SelfAttention;
}

namespace trireme::shardformer {

/// The role attention: each rank computes some of the heads. In the modes with a separate axis, q, k and v are slices
/// of the tokens.
void cut_attention(nn::SelfAttention& attention, const ParallelContext& how);

}  // namespace trireme::shardformer
