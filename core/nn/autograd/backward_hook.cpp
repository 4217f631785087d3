#include "core/nn/autograd/backward_hook.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <utility>

namespace trireme::nn {

using torch::autograd::variable_list;

variable_list BackwardHook::apply(variable_list&& gradients) {
  call_(part_);
  return num_outputs() == 0 ? variable_list() : std::move(gradients);
}

Tensors register_backward_hook(Tensors tensors, BackwardCallback call, bool always) {
  torch::autograd::edge_list behind;
  const auto wants = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  for (const auto& tensor : tensors)
    if (wants(tensor)) behind.push_back(torch::autograd::impl::gradient_edge(tensor));
  const bool stops_gradient = behind.empty();
  if (stops_gradient && !always) return tensors;
  const std::shared_ptr<BackwardHook> node(new BackwardHook(std::move(call), std::move(behind)),
                                           torch::autograd::deleteNode);
  for (auto& tensor : tensors) {
    if (!(stops_gradient ? tensor.defined() && tensor.is_floating_point() : wants(tensor))) continue;
    tensor = tensor.detach();
    torch::autograd::set_history(tensor, node);
  }
  return tensors;
}

}  // namespace trireme::nn
