// Recomputation (activation checkpointing): the forward pass of a block saves only its inputs; the backward pass runs
// the block again to restore the activations. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
#pragma once

#include <memory>

#include "core/nn/block.h"

namespace trireme::nn {

/// Runs block->forward(inputs, context) and saves only its inputs for the backward pass. The results are the same as
/// without recomputation: dropout masks depend only on names, the autocast state of the forward pass is restored, and
/// so are LibTorch's generators if the block uses them. Gradients of parameters pass through the outer graph, so
/// post-accumulate hooks run there, once per parameter. A hook on the parameter tensor itself (register_hook) also sees
/// the inner graph and runs twice.
Tensors recompute(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context);

}  // namespace trireme::nn
