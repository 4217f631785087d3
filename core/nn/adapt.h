// Wraps a user's own torch::nn::Module as a Model: as one block, or as one block for each child of a
// torch::nn::Sequential. Parameters keep their names in the user's module and their memory: materialize() does not
// replace it.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>

#include "core/nn/block.h"

namespace trireme::nn {

using ForwardFn = std::function<Tensors(Tensors inputs, const Context& context)>;

/// `forward` runs `module`, which is first put into training or evaluation mode according to the context.
std::unique_ptr<Model> adapt(std::shared_ptr<torch::nn::Module> module, ForwardFn forward);
/// Each child takes one tensor and returns one tensor.
std::unique_ptr<Model> adapt(const torch::nn::Sequential& sequential);

}  // namespace trireme::nn
