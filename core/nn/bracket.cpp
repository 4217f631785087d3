#include "core/nn/bracket.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <utility>

namespace trireme::nn {

using torch::autograd::variable_list;

variable_list Bracket::apply(variable_list&& gradients) {
  call_(part_);
  return std::move(gradients);
}

Tensors on_backward(Tensors tensors, OnBackward call) {
  torch::autograd::edge_list behind;
  const auto wants = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  for (const auto& tensor : tensors)
    if (wants(tensor)) behind.push_back(torch::autograd::impl::gradient_edge(tensor));
  if (behind.empty()) return tensors;
  const std::shared_ptr<Bracket> node(new Bracket(std::move(call), std::move(behind)), torch::autograd::deleteNode);
  for (auto& tensor : tensors) {
    if (!wants(tensor)) continue;
    tensor = tensor.detach();
    torch::autograd::set_history(tensor, node);
  }
  return tensors;
}

}  // namespace trireme::nn
