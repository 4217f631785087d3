// Between slices of tokens with all heads and all tokens with some of the heads, by all-to-all. Jacobs et al.,
// "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models", 2023.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"

namespace trireme::shardformer {

/// x [B, heads, this rank's slice of tokens[i], d] -> [B, this rank's share of the heads, tokens[i], d], each; shares
/// are shard::split(heads), so that some ranks have one head more. Backward: the way back. Traffic: the inputs'
/// elements, in one all-to-all.
std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& x, const std::vector<std::int64_t>& tokens,
                                        const comm::Group& group);

/// The way back: x [B, this rank's share of `heads`, tokens, d] -> [B, heads, this rank's slice of the tokens, d].
at::Tensor heads_to_tokens(const at::Tensor& x, std::int64_t heads, const comm::Group& group);

}  // namespace trireme::shardformer
