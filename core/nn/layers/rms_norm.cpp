#include "core/nn/layers/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/rsqrt.h>

namespace trireme::nn {

RmsNorm::RmsNorm(std::int64_t size, double eps) : eps_(eps) { declare("weight", weight_, {size}, Init::ones()); }

at::Tensor RmsNorm::compute(const at::Tensor& x, const Context&) {
  const auto wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  const auto normed = wide * at::rsqrt(wide.square().mean(-1, true) + eps_);
  return weight_ * normed.to(x.scalar_type());
}

}  // namespace trireme::nn
