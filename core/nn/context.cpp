#include "core/nn/context.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/promote_types.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A scalar for an operation with `like`. A scalar on the CPU stays there: a copy would wait for the device.
at::Tensor scalar_for(const at::Tensor& scalar, const at::Tensor& like) {
  return scalar.is_cpu() ? scalar.to(like.scalar_type()) : scalar.to(like.options(), /*non_blocking=*/true);
}

/// x itself; where its gradient arrives, the term gets its own.
struct AddToLoss : torch::autograd::Function<AddToLoss> {
  struct Factor {
    at::Tensor weight, scale;
    at::TensorOptions term;
  };
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& term, const Context& context) {
    save_state(ctx, std::make_shared<Factor>(Factor{context.training ? context.loss_weight : at::Tensor(),
                                                    context.loss_scale, term.options()}));
    return x.detach();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& [weight, scale, term] = *saved_state<Factor>(ctx);
    at::Tensor of_term;
    if (weight.defined()) {
      // 16 bits cannot hold a large weight.
      const auto type = at::promote_types(c10::typeMetaToScalarType(term.dtype()), at::kFloat);
      of_term = at::ones({}, term.dtype(type));
      of_term = of_term / scalar_for(weight, of_term);
      if (scale.defined()) of_term = of_term * scalar_for(scale, of_term);
      of_term = of_term.to(term.dtype());
    }
    return {gradients[0], of_term, at::Tensor()};
  }
};

}  // namespace

at::Tensor Context::add_to_loss(const at::Tensor& x, const at::Tensor& term) const {
  TRIREME_REQUIRE(term.dim() == 0 && term.is_floating_point(),
                  "Context::add_to_loss(): a term is the sum over the samples, one floating-point number, but this one "
                  "has {} dimensions and the dtype {}",
                  term.dim(), c10::toString(term.scalar_type()));
  TRIREME_REQUIRE(
      x.is_floating_point(),
      "Context::add_to_loss(): the gradient of a term comes through x, but x has the dtype {}; pass a tensor "
      "that the block computes",
      c10::toString(x.scalar_type()));
  TRIREME_REQUIRE(
      !training || loss_weight.defined(),
      "Context::add_to_loss(): in training the context needs the weight of the global batch; for batches of "
      "your own loader call Boosted::set_global_weight(), or set Batch::global_weight "
      "(the Accelerator learns the weight only in its backward pass: there, add the term to the loss)");
  // Also in an evaluation with a graph: a pipeline learns from one which tensors between stages want a gradient.
  return at::GradMode::is_enabled() ? AddToLoss::apply(x, term, *this) : x;
}

}  // namespace trireme::nn
