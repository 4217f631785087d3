#include "core/nn/layers/fused_attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/base/autocast.h"
#include "core/base/planned_device.h"

namespace trireme::nn {

/// The dtype in which LibTorch's attention would compute under the autocast of this thread.
static at::ScalarType attention_dtype(const at::Tensor& q) {
  const auto autocast = AutocastState::current(c10::kCPU);
  return autocast.enabled && q.scalar_type() != at::kDouble ? autocast.dtype : q.scalar_type();
}

/// Whether a CPU is slow at attention in this dtype.
static bool prefers_float(at::ScalarType dtype, std::int64_t keys) {
  constexpr std::int64_t kMany = 128;  // a matrix unit pays
  return at::isReducedFloatingType(dtype) && (keys < kMany || !at::native::cpublas::could_pack(dtype));
}

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, bool causal) {
  const auto attend = [&](const auto&... qkv_mask) { return at::scaled_dot_product_attention(qkv_mask..., 0, causal); };
  if (type_of(q.device()) != c10::kCPU) return attend(q, k, v, mask);
  const auto dtype = attention_dtype(q);
  if (!prefers_float(dtype, k.size(2))) return attend(q, k, v, mask);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::DispatchKeySet({kPlannedAutocast, at::autocast::get_autocast_dispatch_key_from_device_type(c10::kCPU)}));
  const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
  return attend(wide(q), wide(k), wide(v), mask ? std::optional(wide(*mask)) : mask).to(dtype);
}

}  // namespace trireme::nn
