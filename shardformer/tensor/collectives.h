// Differentiable collectives for activations that are sharded over the ranks of a group, or move between them. Shoeybi
// et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, calls the
// first "g". The forward pass of each is collective over the group; a group of one rank sends nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"

namespace trireme::shardformer {

/// The sum of all ranks' x, on each of them. Backward: passes the gradient through, since each rank's share has the
/// same gradient as the sum. x is overwritten. Communication: numel(x) elements in the forward pass.
at::Tensor sum_over(at::Tensor x, const comm::Group& group);

/// Concatenates the ranks' slices of the last dim; rank r has shard::split(size / unit) units. Backward: this rank's
/// slice of the gradient. Communication: the elements of the full tensor in the forward pass.
at::Tensor gather_last_dim(const at::Tensor& x, std::int64_t size, std::int64_t unit, const comm::Group& group);

/// Sends each rank its rows of x (tokens, say): rank r gets the next send_counts[r] of them. Returns the rows that this
/// rank gets, by the ranks that sent them, receive_counts[r] from rank r. Counts may be 0, so that a rank may have no
/// row before or afterwards. Backward: the gradients take the way back, a collective too: on every rank the loss must
/// depend on the result, also on one without rows, and x requires a gradient on all ranks or on none.
/// Communication: the rows for other ranks, once in either direction. @pre send_counts add up to the rows of x, and
/// receive_counts[r] is what rank r sends to this rank
at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& send_counts,
                      const std::vector<std::int64_t>& receive_counts, const comm::Group& group);

}  // namespace trireme::shardformer
