#include "core/nn/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_dropout_backward.h>

#include "core/base/error.h"
#include "core/nn/fused.h"

namespace trireme::nn {

Dropout::Dropout(double p) : p_(p) { TRIREME_REQUIRE(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p); }

at::Tensor Dropout::mask(const Context& context, const Elements& elements, c10::Device device) const {
  return dropout_mask(dropout_key(context.seed, context.step, path()), p_, context.sample_ids, elements, device);
}

Elements Dropout::from(const at::Tensor& x, std::int64_t begin) {
  std::int64_t of_index = 1;  // elements per index of dim 1
  for (std::int64_t d = 2; d < x.dim(); ++d) of_index *= x.size(d);
  const auto held = of_index * (x.dim() > 1 ? x.size(1) : 1);
  return {.count = held, .offset = begin * of_index, .row = held};
}

at::Tensor Dropout::mask_of(const at::Tensor& x, const Context& context) const {
  if (!active(context)) return {};
  TRIREME_REQUIRE(context.sample_ids.defined() && context.sample_ids.numel() == x.size(0),
                  "dropout \"{}\": the batch has {} samples, but the context has sample ids for {}", path(), x.size(0),
                  context.sample_ids.defined() ? context.sample_ids.numel() : 0);
  return mask(context, mask_slice_ ? mask_slice_(x, context) : from(x, 0), x.device()).view(x.sizes());
}

at::Tensor Dropout::compute(const at::Tensor& x, const Context& context) {
  const auto kept = mask_of(x, context);
  // Despite its name, this is x * mask * scale itself: it is differentiable and stores the mask as bool.
  return kept.defined() ? at::native_dropout_backward(x, kept, scale()) : x;
}

at::Tensor Dropout::add_to(const at::Tensor& residual, const at::Tensor& x, const Context& context) {
  if (!fused_ || !is_mask() || residual.sizes() != x.sizes() || !can_fuse({x, residual}))
    return residual + forward(x, context);
  return masked_add(x, mask_of(x, context), scale(), residual);
}

}  // namespace trireme::nn
