// Fused steps: two or three steps of a block as one node of the autograd graph, with fewer passes over memory. The
// results equal those of the separate steps up to rounding: GELU is the exact one (erf), and the mask is given
// (core/nn/layers/dropout_mask.h). A backward pass computes only the gradients that are needed; a split one
// (core/nn/autograd/split_backward.h) computes nothing twice.
//
// Implementations: on the CPU, our own pass for mask and sum and LibTorch's kernels for the rest, where our own passes
// were not faster; on a GPU, our own kernels from libtrireme_cuda; on other devices, LibTorch's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <initializer_list>

namespace trireme::nn {

/// Whether a fused step can take these tensors together: one floating-point dtype, one device, and no autocast, which
/// would choose the dtype of each step.
bool can_fuse(std::initializer_list<at::Tensor> tensors);

// All tensors must satisfy can_fuse(); strides are arbitrary. `mask`: bool, of x's shape, true for elements that are
// kept and then multiplied by `scale`. If it is undefined, x is used unchanged.

/// gelu(x + bias), with x [..., n] and bias [n]. It may overwrite the memory of x, so nothing else may use x.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

/// residual + x * mask * scale. All have the same shape.
at::Tensor masked_add(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual);

/// Returns {sum, layer norm of sum over the last dim}, with sum = residual + x * mask * scale. weight and bias: [n].
std::array<at::Tensor, 2> masked_add_norm(const at::Tensor& x, const at::Tensor& mask, double scale,
                                          const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                          double eps);

/// The steps for one kind of device, without autograd. Tensors are dense.
struct FusedKernels {
  /// May write x + bias into x.
  at::Tensor (*bias_gelu)(at::Tensor& x, const at::Tensor& bias);
  /// For x + bias; `x` holds what bias_gelu() left in it.
  at::Tensor (*bias_gelu_backward)(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias);
  /// With an undefined residual: x * mask * scale. `mask` must be defined.
  at::Tensor (*masked_add)(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual);
  /// {sum, norm, mean, 1 / standard deviation}
  std::array<at::Tensor, 4> (*add_norm)(const at::Tensor& x, const at::Tensor& mask, double scale,
                                        const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                        double eps);
  struct NormSaved {
    at::Tensor sum, mean, rstd, weight, bias;
  };
  /// Returns the gradients of {sum, weight, bias} that are wanted. of_sum: the gradient that reaches the sum directly;
  /// undefined when there is none.
  std::array<at::Tensor, 3> (*add_norm_backward)(const at::Tensor& of_norm, const at::Tensor& of_sum,
                                                 const NormSaved& saved, std::array<bool, 3> wanted);
};
/// LibTorch's kernels, and our own pass for mask and sum on the CPU where its dtype is supported.
const FusedKernels& plain_kernels();
/// Sets the kernels for GPUs. libtrireme_cuda calls this when it is loaded.
void register_gpu_kernels(const FusedKernels& kernels);
/// Whether our own kernels are available for the device.
bool has_own_kernels(c10::Device device);

}  // namespace trireme::nn
