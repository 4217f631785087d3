// Slices of tokens: dim 1 of activations [B, N, ...] is sharded over the ranks of a group by shard::split(N). This file
// has the collectives between slices and full tensors, plain and differentiable ones. Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022, calls them "g bar".
//
// The caller passes N, the full number of tokens, because it does not follow from uneven slices. Slices may be empty.
// Each call is collective over the group, as is its backward pass if it has one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {

/// The range of `tokens` tokens that this rank holds.
shard::Range local_tokens(std::int64_t tokens, const comm::Group& group);

/// An all-gather of slices in progress.
struct Gathering {
  std::vector<at::Tensor> slices;
  comm::Work work;
  at::Tensor wait();  ///< returns the full tensor
};
/// Communication: the elements of the full tensor. @throws LogicError when `slice` does not have this rank's share of
/// `tokens`
Gathering gather_async(const at::Tensor& slice, std::int64_t tokens, const comm::Group& group);

/// A reduce-scatter of full tensors in progress.
struct Reduction {
  at::Tensor slice;
  comm::Work work;
  at::Tensor wait();
};
/// Communication: the elements of the full tensor.
Reduction reduce_scatter_async(const at::Tensor& whole, const comm::Group& group);

/// This rank's slice of x, which is the same on each rank. Backward: all-gathers the gradient (communication: the
/// elements of the full tensor), so that it is the same on each rank.
at::Tensor scatter_tokens(const at::Tensor& x, const comm::Group& group);
/// This rank's slice of the sum of all ranks' x. Backward: all-gathers the gradient.
at::Tensor sum_to_slices(const at::Tensor& x, const comm::Group& group);
/// All tokens of slices of x, on each rank. Backward: this rank's slice of its own gradient, if each rank has the
/// `same_gradient`; else of the sum of all ranks' gradients. Communication: the elements of the full tensor, and again
/// if gradients are summed.
at::Tensor gather_tokens(const at::Tensor& x, std::int64_t tokens, const comm::Group& group, bool same_gradient);
/// Broadcasts the first token, [B, 1, ...], of rank 0's slice to all ranks. Backward: rank 0 uses its own gradient,
/// which is that of every rank or the only one that counts; the others have none. Communication: the elements of one
/// token, from rank 0.
at::Tensor first_token_to_all(const at::Tensor& x, const comm::Group& group);
/// Returns the parameters unchanged. Backward: sums the gradients over the ranks, for parameters that each rank uses
/// for other tokens, in one all-reduce of the gradients that are needed.
std::vector<at::Tensor> sum_gradients(const std::vector<at::Tensor>& parameters, const comm::Group& group);

}  // namespace trireme::shardformer
