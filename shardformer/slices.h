// Slices of tokens: dim 1 of activations [B, N, ...], of which each rank of a group has shard::split(N)'s part. The
// collectives between slices and wholes, plain ones and those that autograd sees. Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022, calls them "g bar".
//
// N, the tokens of the whole, is told by whoever calls: uneven slices do not tell it. Slices may be empty. Each call is
// collective over the group, as is the backward of those that have one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {

/// The tokens that this rank has of `tokens`.
shard::Range tokens_here(std::int64_t tokens, const comm::Group& group);

/// Under way: all ranks' slices to each rank.
struct Gathering {
  std::vector<at::Tensor> slices;
  comm::Work work;
  at::Tensor wait();  ///< the whole
};
/// Traffic: the whole's elements. @throws LogicError when `slice` has not this rank's share of `tokens`
Gathering gather_async(const at::Tensor& slice, std::int64_t tokens, const comm::Group& group);

/// Under way: the sum of all ranks' wholes, to each rank its slice.
struct Reduction {
  at::Tensor slice;
  comm::Work work;
  at::Tensor wait();
};
/// Traffic: the whole's elements.
Reduction reduce_scatter_async(const at::Tensor& whole, const comm::Group& group);

/// This rank's slice of x, which is the same on each rank. Backward: every rank gets the whole gradient (traffic: the
/// whole's elements), so that what comes before has it on each rank alike.
at::Tensor scatter_tokens(const at::Tensor& x, const comm::Group& group);
/// This rank's slice of the sum of all ranks' x. Backward: every rank gets the whole gradient.
at::Tensor sum_to_slices(const at::Tensor& x, const comm::Group& group);
/// The first token, [B, 1, ...], of the slice of rank 0, on each rank. Backward: rank 0 takes its own gradient, which
/// is that of every rank or the one that counts; the others have none. Traffic: one token's elements, from rank 0.
at::Tensor first_token_to_all(const at::Tensor& x, const comm::Group& group);
/// The parameters as they are. Backward: the sum of the ranks' gradients, for parameters that each rank uses for other
/// tokens. One all-reduce of those that are asked for.
std::vector<at::Tensor> sum_gradients(const std::vector<at::Tensor>& parameters, const comm::Group& group);

}  // namespace trireme::shardformer
