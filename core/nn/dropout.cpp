#include "core/nn/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_dropout_backward.h>

#include "core/base/error.h"
#include "core/nn/fused.h"

namespace trireme::nn {

Dropout::Dropout(double p) : p_(p) { TRIREME_CHECK(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p); }

at::Tensor Dropout::mask(const Context& context, const Elements& elements, c10::Device device) const {
  return dropout_mask(dropout_key(context.seed, context.step, path()), p_, context.sample_ids, elements, device);
}

at::Tensor Dropout::mask_of(const at::Tensor& x, const Context& context) const {
  if (!active(context)) return {};
  const auto count = x.sizes().size();
  TRIREME_CHECK(context.sample_ids.defined() && context.sample_ids.numel() == x.size(0),
                "dropout \"{}\": the batch has {} samples, but the numbers of {} were given", path(), x.size(0),
                context.sample_ids.defined() ? context.sample_ids.numel() : 0);
  std::int64_t of_index = 1;  // elements that share an index of dim 1
  for (std::size_t d = 2; d < count; ++d) of_index *= x.size(static_cast<std::int64_t>(d));
  const std::int64_t held = of_index * (count > 1 ? x.size(1) : 1), begin = begin_ ? begin_(context) : 0;
  return mask(context, {.count = held, .offset = begin * of_index, .row = held}, x.device()).view(x.sizes());
}

at::Tensor Dropout::compute(const at::Tensor& x, const Context& context) {
  const auto kept = mask_of(x, context);
  // LibTorch's name tells its first use; it is x * mask * scale, differentiable, and keeps the mask as bool.
  return kept.defined() ? at::native_dropout_backward(x, kept, scale()) : x;
}

at::Tensor Dropout::add_to(const at::Tensor& residual, const at::Tensor& x, const Context& context) {
  if (!fused_ || !is_mask() || residual.sizes() != x.sizes() || !can_fuse({x, residual}))
    return residual + forward(x, context);
  return masked_add(x, mask_of(x, context), scale(), residual);
}

}  // namespace trireme::nn
