#include "core/nn/layers/gated_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/own_operator.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SiluProduct : torch::autograd::Function<SiluProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    static const auto step = own_operator<decltype(gate_by_operators)>("trireme::gate");
    ctx->save_for_backward({gate, up});
    return step.call(gate.contiguous(), up.contiguous());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    static const auto step = own_operator<decltype(gate_backward_by_operators)>("trireme::gate_backward");
    const auto saved = ctx->get_saved_variables();
    auto [of_gate, of_up] = step.call(grads[0].contiguous(), saved[0].contiguous(), saved[1].contiguous());
    return {std::move(of_gate), std::move(of_up)};
  }
};

}  // namespace

at::Tensor gate_by_operators(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate).mul_(up); }

std::tuple<at::Tensor, at::Tensor> gate_backward_by_operators(const at::Tensor& gradient, const at::Tensor& gate,
                                                              const at::Tensor& up) {
  auto of_gate = at::silu_backward(gradient * up, gate);
  return {std::move(of_gate), at::silu(gate).mul_(gradient)};
}

at::Tensor silu_product(const at::Tensor& gate, const at::Tensor& up) {
  TRIREME_CHECK(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
                "gate and up differ in shape or dtype");
  return SiluProduct::apply(gate, up);
}

}  // namespace trireme::nn

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("gate(Tensor gate, Tensor up) -> Tensor");
  library.def("gate_backward(Tensor gradient, Tensor gate, Tensor up) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CompositeExplicitAutograd, library) {
  library.impl("gate", trireme::nn::gate_by_operators);
  library.impl("gate_backward", trireme::nn::gate_backward_by_operators);
}
