// A user's own torch::nn::Module as a Model: one block, or a block a child of a torch::nn::Sequential. Parameters keep
// the names they have in the user's module, and the memory they have: materialize() leaves them alone.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>

#include "core/nn/block.h"

namespace trireme::nn {

using ForwardFn = std::function<Tensors(Tensors inputs, const Context& context)>;

/// `forward` runs `module`, which is put into training or evaluation mode first, as the context says.
std::unique_ptr<Model> adapt(std::shared_ptr<torch::nn::Module> module, ForwardFn forward);
/// Each child takes one tensor and returns one.
std::unique_ptr<Model> adapt(const torch::nn::Sequential& sequential);

}  // namespace trireme::nn
