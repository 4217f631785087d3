// Differentiable collectives for activations that are sharded over the ranks of a group. Shoeybi et al., "Megatron-LM:
// Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, calls the first "g".
// The forward pass of each is collective over the group; a group of one rank sends nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"

namespace trireme::shardformer {

/// The sum of all ranks' x, on each of them. Backward: passes the gradient through, since each rank's share has the
/// same gradient as the sum. x is overwritten. Communication: numel(x) elements in the forward pass.
at::Tensor sum_over(at::Tensor x, const comm::Group& group);

/// Concatenates the ranks' slices of the last dim; rank r has shard::split(size / unit) units. Backward: this rank's
/// slice of the gradient. Communication: the elements of the full tensor in the forward pass.
at::Tensor gather_last_dim(const at::Tensor& x, std::int64_t size, std::int64_t unit, const comm::Group& group);

}  // namespace trireme::shardformer
