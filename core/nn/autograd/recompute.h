// Recomputation (activation checkpointing): the forward pass of a function saves only its inputs; the backward pass
// runs the function again to restore the activations. The function is a block (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016) or one layer inside a block whose activations are large and cheap to compute, such as
// attention (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022).
#pragma once

#include <functional>
#include <memory>

#include "core/nn/autograd/activation_offload.h"
#include "core/nn/block.h"

namespace trireme::nn {

/// A function of tensors that the backward pass can run again.
struct Recomputable {
  std::function<Tensors(const Tensors& inputs)> run;
  std::vector<at::Tensor> parameters;               ///< those that run() reads; the others get no gradient
  std::vector<at::Tensor> buffers{};                ///< those that run() may update; only the first run does
  bool uses_torch_generators = false;               ///< whether run() draws from LibTorch's generators
  std::shared_ptr<ActivationOffload> offload = {};  ///< moves the saved inputs to host memory; null: they stay
};

/// Runs the function and saves only its inputs for the backward pass. The results are the same as without
/// recomputation: dropout masks depend only on names, the autocast state of the forward pass is restored, and so are
/// LibTorch's generators if the function uses them. Gradients of parameters pass through the outer graph, so
/// post-accumulate hooks run there, once per parameter. A hook on the parameter tensor itself (register_hook) also sees
/// the inner graph and runs twice. Nothing is saved if no gradient is required.
Tensors run_recomputable(Recomputable function, Tensors inputs);

/// block->forward(inputs, context) as a function of its inputs.
Recomputable recomputable(const std::shared_ptr<Block>& block, const Context& context);
/// Runs a block so: a RunBlock (core/nn/block.h).
Tensors recompute(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context);

}  // namespace trireme::nn
