#include "core/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/sin.h>

#include <utility>

#include "core/base/error.h"

namespace trireme::nn {

Rotary::Rotary(Options options) : options_(std::move(options)) {
  if (options_.head_size < 2 || options_.head_size % 2 != 0)
    throw ConfigError(fmt::format("rotary positions need heads of an even size, not {}", options_.head_size));
}

/// Positions [..., n] -> angles [..., n, d].
Rotary::Angles Rotary::compute(const at::Tensor& x, const at::Tensor& positions) const {
  const auto type = at::promote_types(x.scalar_type(), at::kFloat);
  const auto wide = x.options().dtype(type).requires_grad(false);
  const auto exponents = at::arange(0, options_.head_size, 2, wide) / options_.head_size;
  const auto frequencies = at::pow(options_.theta, exponents).reciprocal();
  const auto half = positions.to(type).unsqueeze(-1) * frequencies;
  const auto both = at::cat({half, half}, -1);
  return {at::cos(both).to(x.scalar_type()), at::sin(both).to(x.scalar_type())};
}

Rotary::Angles Rotary::angles(const at::Tensor& x, std::int64_t first, const Context& context) const {
  TRIREME_REQUIRE(x.size(3) == options_.head_size, "rotary positions are for heads of {} features, not {}",
                  options_.head_size, x.size(3));
  const auto count = x.size(2);
  const auto* given = context.side.find(options_.positions);
  const auto version = given == nullptr || given->is_inference() ? 0 : static_cast<std::int64_t>(given->_version());
  const auto& cos = last_.angles.cos;
  const bool fits =
      cos.defined() && last_.first == first && cos.size(-2) == count && cos.scalar_type() == x.scalar_type() &&
      cos.device() == x.device() &&
      (given == nullptr ? !last_.positions.defined() : last_.positions.is_same(*given) && last_.version == version);
  if (fits) return last_.angles;
  const at::NoGradGuard no_grad;
  const auto positions = given != nullptr ? given->narrow(1, first, count).unsqueeze(1)
                                          : at::arange(first, first + count, x.options().dtype(at::kLong));
  last_ = {first, given == nullptr ? at::Tensor() : *given, version, compute(x, positions)};
  return last_.angles;
}

at::Tensor Rotary::rotate(const at::Tensor& x, const Angles& angles) {
  const auto cos = angles.cos.narrow(-2, 0, x.size(2)), sin = angles.sin.narrow(-2, 0, x.size(2));
  const auto half = x.size(3) / 2;
  const auto turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * cos + turned * sin;
}

}  // namespace trireme::nn
