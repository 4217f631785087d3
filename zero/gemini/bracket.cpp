#include "zero/gemini/bracket.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace trireme::zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call : torch::CustomClassHolder {
  explicit Call(std::function<void()> function) : run(std::move(function)) {}
  std::function<void()> run;
};

struct OnBackward : torch::autograd::Function<OnBackward> {
  // TensorList: the one kind of list whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Call>& call, at::TensorList tensors) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return tensors.vec();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    c10::static_intrusive_pointer_cast<Call>(ctx->saved_data.at("call").toCapsule())->run();
    grads.insert(grads.begin(), at::Tensor());  // `call` has none
    return grads;
  }
};

}  // namespace

nn::Tensors on_backward(nn::Tensors tensors, std::function<void()> call) {
  variable_list through;
  for (const auto& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) through.push_back(tensor);
  if (through.empty()) return tensors;
  auto out = OnBackward::apply(c10::make_intrusive<Call>(std::move(call)), at::TensorList(through));
  std::size_t next = 0;
  for (auto& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) tensor = std::move(out[next++]);
  return tensors;
}

}  // namespace trireme::zero
