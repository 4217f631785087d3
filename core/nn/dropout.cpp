#include "core/nn/dropout.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <cmath>

#include "core/base/error.h"

namespace trireme::nn {

Dropout::Dropout(double p) : p_(p) { TRIREME_CHECK(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p); }

at::Tensor Dropout::forward(const at::Tensor& x, const Context& context) {
  if (!active(context)) return x;
  const std::int64_t samples = x.size(0);
  std::int64_t count = 1;
  for (const auto size : x.sizes().slice(1)) count *= size;
  TRIREME_CHECK(samples == 0 || count * samples == x.numel(), "dropout over a tensor of no known shape");
  return forward(x, context, Elements::all(count));
}

at::Tensor Dropout::forward(const at::Tensor& x, const Context& context, const Elements& elements) const {
  if (!active(context)) return x;
  TRIREME_CHECK(context.sample_ids.defined() && context.sample_ids.numel() == x.size(0),
                "dropout \"{}\": the batch has {} samples, but the numbers of {} were given", path(), x.size(0),
                context.sample_ids.defined() ? context.sample_ids.numel() : 0);
  const auto mask =
      dropout_mask(dropout_key(context.seed, context.step, path()), p_, context.sample_ids, elements, x.device());
  // LibTorch's name tells its first use; it is x * mask * scale, differentiable, and keeps the mask as bool.
  return at::native_dropout_backward(x, mask.view(x.sizes()), 1 / (1 - p_));
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context) {
  if (!dropout.active(context)) return at::scaled_dot_product_attention(q, k, v);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const auto scores = at::matmul(q * scale, k.transpose(-2, -1));
  const auto kept = dropout.forward(at::softmax(scores, -1), context);
  return at::matmul(kept.to(v.scalar_type()), v);
}

}  // namespace trireme::nn
