// Cross-entropy of logits whose classes are sharded over ranks. The ranks exchange four numbers for each label, not
// the logits. Shoeybi et al., "Megatron-LM", 2019, section 3, with label smoothing, class weights and mixed targets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"
#include "core/nn/criterion.h"

namespace trireme::shardformer {

/// logits [..., local classes]: those of the classes that shard::split gives this rank; labels and options as those of
/// nn::cross_entropy(), out of all classes. Returns nn::cross_entropy() on every rank; the backward pass gives each
/// rank the gradient of its logits without communication. Collective over the group: all-reduces of N and of 3 N
/// elements in the forward pass, N positions.
at::Tensor label_parallel_loss(const at::Tensor& logits, const at::Tensor& labels,
                               const nn::CrossEntropyOptions& options, std::int64_t classes, const comm::Group& group);

}  // namespace trireme::shardformer
