#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace trireme::nn {

/// LibTorch's attention of q [B, heads, n, d] to k and v [B, heads, N, d], with a mask that is added to the scores. In
/// half precision a CPU computes in fp32, which takes a half to a sixth of the time, unless it has a matrix unit for
/// the dtype and there are many keys.
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask = {}, bool causal = false);

}  // namespace trireme::nn
