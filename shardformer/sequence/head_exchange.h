// Exchanges slices of tokens with all heads for all tokens with some of the heads, by all-to-all. Jacobs et al.,
// "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models", 2023.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"

namespace trireme::shardformer {

/// For each i: x[i] [B, heads, this rank's slice of tokens[i], d] -> [B, this rank's share of the heads, tokens[i], d].
/// Shares are shard::split(heads), so some ranks may have one head more. Backward: the reverse exchange. Communication:
/// the elements of the inputs, in one all-to-all.
std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& x, const std::vector<std::int64_t>& tokens,
                                        const comm::Group& group);

/// The reverse: x [B, this rank's share of `heads`, tokens, d] -> [B, heads, this rank's slice of the tokens, d].
at::Tensor heads_to_tokens(const at::Tensor& x, std::int64_t heads, const comm::Group& group);

}  // namespace trireme::shardformer
