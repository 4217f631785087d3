// Cross-entropy of many logits, such as those of a language model's vocabulary, by chunks of rows. Of the logits' size
// there is nothing else but their gradient, and that can take the logits' own memory. The classes may be sharded over
// ranks, which exchange four numbers for each label and no logits. Shoeybi et al., "Megatron-LM", 2019, section 3, with
// label smoothing, class weights and mixed targets; Hsu et al., "Liger Kernel", 2024, for the gradient in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm/group.h"
#include "core/nn/layers/criterion.h"

namespace trireme::nn {

/// logits [..., classes of this rank]: all classes without a group, else those that shard::split gives this rank of
/// `classes`. Labels and options as those of cross_entropy(), out of all classes, and so is the result, on every rank.
/// The backward pass gives each rank the gradient of its logits without communication. Collective over the group:
/// all-reduces of N and of 3 N elements in the forward pass, N positions.
at::Tensor chunked_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options,
                                 std::int64_t classes, const comm::Group* group = nullptr);

}  // namespace trireme::nn
