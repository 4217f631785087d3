// The rotation of rotary positions (core/nn/layers/rotary.h) as an operator of our own, "trireme::rotate", so that a
// device can have its kernel and a planned step sees it. On the CPU it is one pass in float32 and float64; elsewhere it
// is LibTorch's operators. It has no autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// Rotates the pairs (i, i + d/2) of x [B, heads, n, d]. cos and sin [N, d] or [B, 1, N, d], dense, N >= n; each half
/// of a row is the same. `back`: by the opposite angles, which makes the gradients.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back);
/// The same by LibTorch's operators.
at::Tensor rotate_by_operators(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back);

}  // namespace trireme::nn
