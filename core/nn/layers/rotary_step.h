// The rotation of rotary positions (core/nn/layers/rotary.h) as an operator of our own, "trireme::rotate", so that a
// device can have its kernel and a planned step sees it. On the CPU it is one pass in float32 and float64; elsewhere it
// is LibTorch's operators. It has no autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace trireme::nn {

/// Rotates the pairs (i, i + d/2) of q [B, heads, m, d] and of k [B, key-value heads, n, d]; m and n may differ. cos
/// and sin [N, d] or [B, 1, N, d], dense, N >= m and n; each half of a row is the same. `back`: by the opposite
/// angles, which makes the gradients.
std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                          const at::Tensor& sin, bool back);

/// The same by LibTorch's operators.
std::tuple<at::Tensor, at::Tensor> rotate_by_operators(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                                       const at::Tensor& sin, bool back);

}  // namespace trireme::nn
