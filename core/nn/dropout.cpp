#include "core/nn/dropout.h"

#include <ATen/ops/native_dropout_backward.h>

#include "core/base/error.h"

namespace trireme::nn {

Dropout::Dropout(double p) : p_(p) { TRIREME_CHECK(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p); }

at::Tensor Dropout::compute(const at::Tensor& x, const Context& context) { return drop(x, context, begin_); }

at::Tensor Dropout::mask(const Context& context, const Elements& elements, c10::Device device) const {
  return dropout_mask(dropout_key(context.seed, context.step, path()), p_, context.sample_ids, elements, device);
}

at::Tensor Dropout::drop(const at::Tensor& x, const Context& context, std::int64_t begin) const {
  std::int64_t of_index = 1;  // elements that share an index of dim 1
  for (std::int64_t d = 2; d < x.dim(); ++d) of_index *= x.size(d);
  const auto held = of_index * (x.dim() > 1 ? x.size(1) : 1);
  return drop(x, context, Elements{.count = held, .offset = begin * of_index, .row = held});
}

at::Tensor Dropout::drop(const at::Tensor& x, const Context& context, const Elements& elements) const {
  if (!active(context)) return x;
  TRIREME_CHECK(context.sample_ids.defined() && context.sample_ids.numel() == x.size(0),
                "dropout \"{}\": the batch has {} samples, but the numbers of {} were given", path(), x.size(0),
                context.sample_ids.defined() ? context.sample_ids.numel() : 0);
  const auto kept = mask(context, elements, x.device());
  // LibTorch's name tells its first use; it is x * mask * scale, differentiable, and keeps the mask as bool.
  return at::native_dropout_backward(x, kept.view(x.sizes()), 1 / (1 - p_));
}

}  // namespace trireme::nn
