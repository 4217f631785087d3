#include "core/nn/layers/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/rms_norm_step.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The norm as one node of the autograd graph, which keeps its input and a number for each row. Returns {norm}, or
/// {norm, residual + x} with a residual.
struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  // The residual is the last tensor, because one that is missing has no place among the gradients.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& residual, double eps) {
    ctx->set_materialize_grads(false);
    const auto dense = x.contiguous();
    auto [norm, rstd, sum] =
        rms_norm(dense, residual ? std::optional(residual->contiguous()) : std::nullopt, weight.contiguous(), eps);
    ctx->save_for_backward({residual ? sum : dense, rstd, weight});
    variable_list made{std::move(norm)};
    if (residual) made.push_back(std::move(sum));
    return made;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const bool has_residual = grads.size() > 1;
    const bool of_x = ctx->needs_input_grad(0), of_residual = has_residual && ctx->needs_input_grad(2);
    auto of_sum = has_residual ? grads[1] : at::Tensor();
    at::Tensor of_weight;
    if (grads[0].defined())
      std::tie(of_sum, of_weight) =
          rms_norm_backward(grads[0].contiguous(), of_sum.defined() ? std::optional(of_sum.contiguous()) : std::nullopt,
                            saved[0], saved[1], saved[2].contiguous(), {of_x || of_residual, ctx->needs_input_grad(1)});
    return {of_x ? of_sum : at::Tensor(), of_weight, of_residual ? of_sum : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RmsNorm::RmsNorm(std::int64_t size, double eps) : eps_(eps) { declare("weight", weight_, {size}, Init::ones()); }

void RmsNorm::check(const at::Tensor& x) const {
  TRIREME_REQUIRE(x.size(-1) == weight_.size(0), "\"{}\" is a norm of {} features, but got {}", path(), weight_.size(0),
                  x.size(-1));
}

at::Tensor RmsNorm::compute(const at::Tensor& x, const Context&) {
  check(x);
  return AddRmsNorm::apply(x, weight_, std::nullopt, eps_).front();
}

std::array<at::Tensor, 2> RmsNorm::of_sum(const at::Tensor& residual, const at::Tensor& x, const Context& context) {
  std::array<at::Tensor, 2> made;
  if (forward.replaced() || residual.sizes() != x.sizes()) {
    made[0] = residual + x;
    made[1] = forward(made[0], context);
  } else {
    check(x);
    forward.run_wrapped([&] {
      auto results = AddRmsNorm::apply(x, weight_, residual, eps_);
      made = {std::move(results[1]), std::move(results[0])};
    });
  }
  return made;
}

}  // namespace trireme::nn
