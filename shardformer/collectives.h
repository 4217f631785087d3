// Collectives that autograd sees, for activations that the ranks of a group share out. Shoeybi et al., "Megatron-LM:
// Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, calls the first "g".
// Each is collective over the group, forward; a group of one sends nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"

namespace trireme::shardformer {

/// The sum of all ranks' x, on each of them. Backward: the gradient as it is, since each rank's share of the sum has
/// the gradient of the whole. x is overwritten. Traffic: numel(x) elements, forward.
at::Tensor sum_over(at::Tensor x, const comm::Group& group);

/// The ranks' slices of the last dim, side by side: rank r has those of shard::split(size / unit) units. Backward: this
/// rank's slice of the gradient. Traffic: the whole's elements, forward.
at::Tensor gather_last_dim(const at::Tensor& x, std::int64_t size, std::int64_t unit, const comm::Group& group);

}  // namespace trireme::shardformer
