#include "core/nn/layers/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/sin.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/rotary_step.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The rotation as one node of the autograd graph, which keeps the angles alone.
struct ApplyRotary : torch::autograd::Function<ApplyRotary> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return nn::rotate(x, cos, sin, /*back=*/false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {nn::rotate(grads[0], saved[0], saved[1], /*back=*/true), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Rotary::Rotary(Options options) : options_(std::move(options)) {
  if (options_.head_size < 2 || options_.head_size % 2 != 0)
    throw ConfigError(fmt::format("rotary positions need heads of an even size, not {}", options_.head_size));
  if (options_.scaling.type == "dynamic" && options_.head_size == 2)
    throw ConfigError("rotary positions of the type \"dynamic\" need heads of more than 2 features");
}

/// Positions [..., n] -> angles [..., n, d], in samples of `tokens` tokens.
Rotary::Angles Rotary::compute(const at::Tensor& x, const at::Tensor& positions, std::int64_t tokens) const {
  const auto type = at::promote_types(x.scalar_type(), at::kFloat);
  const auto wide = x.options().dtype(type).requires_grad(false);
  const auto half = positions.to(type).unsqueeze(-1) *
                    rotary_frequencies(options_.scaling, options_.head_size, options_.theta, tokens, wide);
  const auto both = at::cat({half, half}, -1);
  const auto amplitude = rotary_amplitude(options_.scaling);
  return {(at::cos(both) * amplitude).to(x.scalar_type()), (at::sin(both) * amplitude).to(x.scalar_type())};
}

Rotary::Angles Rotary::angles(const at::Tensor& x, std::int64_t first, const Context& context) const {
  TRIREME_REQUIRE(x.size(3) == options_.head_size, "rotary positions are for heads of {} features, not {}",
                  options_.head_size, x.size(3));
  const auto count = x.size(2), tokens = std::max(context.tokens, first + count);
  const auto* given = context.side.find(options_.positions);
  const auto version = given == nullptr || given->is_inference() ? 0 : static_cast<std::int64_t>(given->_version());
  const auto& cos = last_.angles.cos;
  const bool fits =
      cos.defined() && last_.first == first && last_.tokens == tokens && cos.size(-2) == count &&
      cos.scalar_type() == x.scalar_type() && cos.device() == x.device() &&
      (given == nullptr ? !last_.positions.defined() : last_.positions.is_same(*given) && last_.version == version);
  if (fits) return last_.angles;
  const at::NoGradGuard no_grad;
  const auto positions = given != nullptr ? given->narrow(1, first, count).unsqueeze(1)
                                          : at::arange(first, first + count, x.options().dtype(at::kLong));
  last_ = {first, tokens, given == nullptr ? at::Tensor() : *given, version, compute(x, positions, tokens)};
  return last_.angles;
}

at::Tensor Rotary::rotate(const at::Tensor& x, const Angles& angles) {
  const auto& cos = angles.cos;
  TRIREME_CHECK(
      cos.size(-2) >= x.size(2) && (cos.dim() == 2 || cos.size(0) == x.size(0)) && cos.scalar_type() == x.scalar_type(),
      "angles of {} tokens do not fit {} samples of {} tokens, or have another dtype", cos.size(-2), x.size(0),
      x.size(2));
  return ApplyRotary::apply(x, cos, angles.sin);
}

}  // namespace trireme::nn
