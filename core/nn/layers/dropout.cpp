#include "core/nn/layers/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_dropout_backward.h>

#include "core/base/error.h"
#include "core/nn/layers/fused.h"

namespace trireme::nn {

namespace {

void check_sample_ids(const char* layer, const std::string& path, const Context& context, std::int64_t samples) {
  TRIREME_REQUIRE(context.sample_ids.defined() && context.sample_ids.numel() == samples,
                  "{} \"{}\": the batch has {} samples, but the context has sample ids for {}", layer, path, samples,
                  context.sample_ids.defined() ? context.sample_ids.numel() : 0);
}

}  // namespace

Dropout::Dropout(double p) : mask_slice([](const at::Tensor& x, const Context&) { return slice_from(x, 0); }), p_(p) {
  TRIREME_REQUIRE(p >= 0 && p < 1, "dropout {} is not in [0, 1)", p);
}

at::Tensor Dropout::mask(const Context& context, const Elements& elements, c10::Device device) const {
  return dropout_mask(dropout_key(context.seed, context.step, path()), p_, context.sample_ids, elements, device);
}

void Dropout::set_first_token(std::function<std::int64_t(const Context& context)> first) {
  mask_slice.replace([first = std::move(first)](const at::Tensor& x, const Context& context) {
    return slice_from(x, first(context));
  });
}

Elements Dropout::slice_from(const at::Tensor& x, std::int64_t begin) {
  std::int64_t of_index = 1;  // elements per index of dim 1
  for (std::int64_t d = 2; d < x.dim(); ++d) of_index *= x.size(d);
  const auto held = of_index * (x.dim() > 1 ? x.size(1) : 1);
  return {.count = held, .offset = begin * of_index, .row = held};
}

void Dropout::check_samples(const Context& context, std::int64_t samples) const {
  check_sample_ids("dropout", path(), context, samples);
}

at::Tensor Dropout::mask_of(const at::Tensor& x, const Context& context) const {
  if (!active(context)) return {};
  check_samples(context, x.size(0));
  return mask(context, mask_slice(x, context), x.device()).view(x.sizes());
}

at::Tensor Dropout::apply_mask(const at::Tensor& x, const at::Tensor& mask) const {
  // Despite its name, this is x * mask * scale itself: it is differentiable and stores the mask as bool.
  return at::native_dropout_backward(x, mask, scale());
}

at::Tensor Dropout::compute(const at::Tensor& x, const Context& context) {
  const auto keep_mask = mask_of(x, context);
  return keep_mask.defined() ? apply_mask(x, keep_mask) : x;
}

at::Tensor Dropout::add_to(const at::Tensor& residual, const at::Tensor& x, const Context& context) {
  if (!fused_ || !is_mask() || residual.sizes() != x.sizes() || !can_fuse({x, residual}))
    return residual + forward(x, context);
  return masked_add(x, mask_of(x, context), scale(), residual);
}

DropPath::DropPath(double p) : p_(p) { TRIREME_REQUIRE(p >= 0 && p < 1, "drop path {} is not in [0, 1)", p); }

at::Tensor DropPath::compute(const at::Tensor& x, const Context& context) {
  if (!context.training || p_ == 0) return x;
  const auto samples = x.size(0);
  check_sample_ids("drop path", path(), context, samples);
  const auto keep = dropout_mask(dropout_key(context.seed, context.step, path()), p_, context.sample_ids,
                                 Elements::all(1), x.device());
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[0] = samples;
  return x * (keep.to(x.scalar_type()) / (1 - p_)).view(shape);
}

}  // namespace trireme::nn
