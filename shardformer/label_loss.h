// Cross-entropy of logits whose classes are cut over ranks: what goes between them is four numbers a sample, not the
// logits. Shoeybi et al., "Megatron-LM", 2019, section 3, with label smoothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"
#include "core/nn/criterion.h"

namespace trireme::shardformer {

/// logits [B, held]: this rank's of `classes`, shard::split's part; labels int64 [B] in all classes, -100: none. The
/// same loss as nn::cross_entropy(), on every rank; backward gives each rank the gradient of its logits, and sends
/// nothing. Collective over the group. Traffic: all-reduces of B and of 3 B elements, forward.
nn::Loss label_parallel_loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing,
                             std::int64_t classes, const comm::Group& group);

}  // namespace trireme::shardformer
