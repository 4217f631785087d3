// Fused steps: two or three of a block's steps as one node of the graph, in fewer passes over memory. The numbers are
// those of the steps one after the other but for rounding: GELU is the exact one (erf), a mask is given
// (core/nn/dropout_mask.h). A backward pass computes the gradients that are asked for; one that comes in two parts
// (core/nn/split_backward.h) does nothing twice.
//
// What stands behind them on the CPU: a pass of our own for mask and sum; LibTorch's kernels for the rest, which passes
// of our own did not beat. On a GPU: kernels of our own, brought by libtrireme_cuda. Elsewhere LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <initializer_list>
#include <string>

namespace trireme::nn {

/// Whether tensors can take a fused step together: one floating dtype, one device, no autocast, which would choose
/// dtypes step by step.
bool can_fuse(std::initializer_list<at::Tensor> tensors);

// All tensors: such as can_fuse() says yes to; of any strides. `mask`: bool, of x's shape, true where x is kept, then
// multiplied by `scale`; undefined: x as it is.

/// gelu(x + bias). x [..., n], whose memory it may take over: for a tensor that nothing else looks at. bias [n].
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

/// residual + x * mask * scale. All of one shape.
at::Tensor masked_add(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual);

/// {sum, layer norm of it over the last dim}, sum = residual + x * mask * scale. weight and bias [n].
std::array<at::Tensor, 2> masked_add_norm(const at::Tensor& x, const at::Tensor& mask, double scale,
                                          const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                          double eps);

/// The steps of one kind of device, without graph. Tensors are dense.
struct FusedKernels {
  /// May write x + bias into x.
  at::Tensor (*bias_gelu)(at::Tensor& x, const at::Tensor& bias);
  /// Of x + bias, with what bias_gelu() has left in x.
  at::Tensor (*bias_gelu_backward)(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias);
  /// Without residual (undefined): x * mask * scale. mask: defined.
  at::Tensor (*masked_add)(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual);
  /// {sum, norm, mean, 1 / standard deviation}
  std::array<at::Tensor, 4> (*add_norm)(const at::Tensor& x, const at::Tensor& mask, double scale,
                                        const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                        double eps);
  struct NormSaved {
    at::Tensor sum, mean, rstd, weight, bias;
  };
  /// Gradients of {sum, weight, bias}, those that are wanted. of_sum: what comes to the sum beside; undefined: nothing.
  std::array<at::Tensor, 3> (*add_norm_backward)(const at::Tensor& of_norm, const at::Tensor& of_sum,
                                                 const NormSaved& saved, std::array<bool, 3> wanted);
};
/// LibTorch's kernels, and our pass for mask and sum where the CPU's numbers have one.
const FusedKernels& plain_kernels();
/// A GPU's own. libtrireme_cuda brings them when it is loaded.
void fuse_on_gpu_by(const FusedKernels& kernels);
/// Whether kernels of our own are there for the device.
bool has_own_kernels(c10::Device device);

}  // namespace trireme::nn
