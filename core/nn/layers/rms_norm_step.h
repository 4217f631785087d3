// The two passes of a root mean square norm, as operators of our own, "trireme::rms_norm" and
// "trireme::rms_norm_backward", so that each device has its kernels and a planned step sees them. On the CPU they are
// one pass over each row in float32 and float64; on a GPU, LibTorch's fused kernels; on other devices and with mixed
// dtypes, LibTorch's operators one after the other. They have no autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace trireme::nn {

/// Returns {norm, rstd, sum}: sum = residual + x, which is undefined without a residual and then stands for x;
/// rstd [rows] = 1 / sqrt(mean(sum^2) + eps), in float32 at least; norm = sum * rstd * weight. x and residual have one
/// shape [..., n], and weight is [n]; all are dense.
std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                                        const at::Tensor& weight, double eps);

/// Returns the gradients of {sum, weight} that are wanted. `of_sum`: the gradient that reaches the sum directly.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& of_norm, const std::optional<at::Tensor>& of_sum,
                                                     const at::Tensor& sum, const at::Tensor& rstd,
                                                     const at::Tensor& weight, std::array<bool, 2> wanted);

/// The same by LibTorch's operators.
std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_by_operators(const at::Tensor& x,
                                                                     const std::optional<at::Tensor>& residual,
                                                                     const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_by_operators(const at::Tensor& of_norm,
                                                                  const std::optional<at::Tensor>& of_sum,
                                                                  const at::Tensor& sum, const at::Tensor& rstd,
                                                                  const at::Tensor& weight, std::array<bool, 2> wanted);

}  // namespace trireme::nn
