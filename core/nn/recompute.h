// Recompute (activation checkpointing): the forward pass of a block keeps only its inputs; the backward pass runs it
// again to get back what it needs. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
#pragma once

#include <memory>

#include "core/nn/block.h"

namespace trireme::nn {

/// block->forward(inputs, context), with its inputs alone kept for backward. The same numbers as without: dropout draws
/// by name, the autocast state of the forward pass is restored, and LibTorch's generators are when the block uses them.
/// Gradients of parameters pass through the outer graph, so that hooks after accumulation run there, once a parameter.
/// A hook put on the parameter tensor itself (register_hook) also sees the inner graph: it runs twice.
Tensors recompute(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context);

}  // namespace trireme::nn
