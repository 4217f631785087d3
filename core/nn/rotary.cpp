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

Rotary::Angles Rotary::angles(const at::Tensor& x, std::int64_t first, const Context& context) const {
  const auto count = x.size(2);
  const auto type = at::promote_types(x.scalar_type(), at::kFloat);
  const auto wide = x.options().dtype(type).requires_grad(false);
  const auto turn = [&](const at::Tensor& positions) {  // [..., n] -> [..., n, d]
    const auto exponents = at::arange(0, options_.head_size, 2, wide) / options_.head_size;
    const auto frequencies = at::pow(options_.theta, exponents).reciprocal();
    const auto half = positions.to(type).unsqueeze(-1) * frequencies;
    const auto both = at::cat({half, half}, -1);
    return Angles{at::cos(both).to(x.scalar_type()), at::sin(both).to(x.scalar_type())};
  };
  const at::NoGradGuard no_grad;
  if (const auto* positions = context.side.find(options_.positions))
    return turn(positions->narrow(1, first, count).unsqueeze(1));
  const bool fits = last_.cos.defined() && first_ == first && last_.cos.size(0) == count &&
                    last_.cos.scalar_type() == x.scalar_type() && last_.cos.device() == x.device();
  if (!fits) {
    last_ = turn(at::arange(first, first + count, wide));
    first_ = first;
  }
  return last_;
}

at::Tensor Rotary::rotate(const at::Tensor& x, std::int64_t first, const Context& context) const {
  TRIREME_REQUIRE(x.size(3) == options_.head_size, "rotary positions are for heads of {} features, not {}",
                  options_.head_size, x.size(3));
  const auto [cos, sin] = angles(x, first, context);
  const auto half = options_.head_size / 2;
  const auto turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * cos + turned * sin;
}

}  // namespace trireme::nn
