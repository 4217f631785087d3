// Fused steps on a GPU with our own kernels. libtrireme_cuda registers them when it is loaded.
#include "core/nn/layers/fused.h"

#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "core/nn/cuda/fused_kernels.h"
#include "core/nn/cuda/kernel_calls.h"

namespace trireme::nn {
namespace {

const void* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
const bool* bits(const at::Tensor& mask) { return mask.defined() ? mask.const_data_ptr<bool>() : nullptr; }

at::Tensor biased_gelu(at::Tensor& x, const at::Tensor& bias) {
  const auto type = dtype_of(x);
  if (!type) return plain_kernels().bias_gelu(x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = at::empty_like(x);
  C10_CUDA_CHECK(
      bias_gelu_on_gpu(*type, data(x), data(bias), out.mutable_data_ptr(), x.numel(), bias.numel(), stream()));
  return out;
}

at::Tensor biased_gelu_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias) {
  const auto type = dtype_of(x);
  if (!type) return plain_kernels().bias_gelu_backward(gradient, x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = at::empty_like(x);
  C10_CUDA_CHECK(bias_gelu_backward_on_gpu(*type, data(gradient), data(x), data(bias), out.mutable_data_ptr(),
                                           x.numel(), bias.numel(), stream()));
  return out;
}

at::Tensor masked_sum(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual) {
  const auto type = dtype_of(x);
  if (!type) return plain_kernels().masked_add(x, mask, scale, residual);
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = at::empty_like(x);
  C10_CUDA_CHECK(masked_add_on_gpu(*type, data(x), bits(mask), scale, data(residual), out.mutable_data_ptr(), x.numel(),
                                   stream()));
  return out;
}

NormShape shape_of(const at::Tensor& x, const at::Tensor& weight) {
  return {weight.numel() == 0 ? 0 : x.numel() / weight.numel(), weight.numel()};
}

std::array<at::Tensor, 4> norm_of_sum(const at::Tensor& x, const at::Tensor& mask, double scale,
                                      const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                      double eps) {
  const auto type = dtype_of(x);
  if (!type) return plain_kernels().add_norm(x, mask, scale, residual, weight, bias, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto shape = shape_of(x, weight);
  const auto per_row = x.options().dtype(at::toAccumulateType(x.scalar_type(), c10::DeviceType::CUDA));
  auto sum = at::empty_like(x), norm = at::empty_like(x), mean = at::empty({shape.rows}, per_row),
       rstd = at::empty({shape.rows}, per_row);
  const auto dense_weight = weight.contiguous(), dense_bias = bias.contiguous();
  C10_CUDA_CHECK(add_norm_on_gpu(
      *type,
      {data(x), data(residual), data(dense_weight), data(dense_bias), bits(mask), sum.mutable_data_ptr(),
       norm.mutable_data_ptr(), mean.mutable_data_ptr(), rstd.mutable_data_ptr()},
      scale, eps, shape, stream()));
  return {std::move(sum), std::move(norm), std::move(mean), std::move(rstd)};
}

/// Our kernel computes the gradient of the sum. LibTorch's computes those of weight and bias (sums over all rows).
std::array<at::Tensor, 3> norm_of_sum_backward(const at::Tensor& of_norm, const at::Tensor& of_sum,
                                               const FusedKernels::NormSaved& saved, std::array<bool, 3> wanted) {
  const auto& [sum, mean, rstd, weight, bias] = saved;
  const auto type = dtype_of(sum);
  if (!type) return plain_kernels().add_norm_backward(of_norm, of_sum, saved, wanted);
  const c10::cuda::CUDAGuard guard(sum.device());
  std::array<at::Tensor, 3> out;
  if (wanted[0]) {
    out[0] = at::empty_like(sum);
    const auto dense_weight = weight.contiguous();
    const auto beside = of_sum.defined() ? of_sum.contiguous() : at::Tensor();
    C10_CUDA_CHECK(add_norm_backward_on_gpu(
        *type,
        {data(of_norm), data(beside), data(sum), data(mean), data(rstd), data(dense_weight), out[0].mutable_data_ptr()},
        shape_of(sum, weight), stream()));
  }
  if (wanted[1] || wanted[2]) {
    auto rest = at::native_layer_norm_backward(of_norm, sum, weight.sizes(), mean, rstd, weight, bias,
                                               {false, wanted[1], wanted[2]});
    out[1] = std::move(std::get<1>(rest));
    out[2] = std::move(std::get<2>(rest));
  }
  return out;
}

const bool fused_registered = [] {
  register_gpu_kernels({biased_gelu, biased_gelu_backward, masked_sum, norm_of_sum, norm_of_sum_backward});
  return true;
}();

}  // namespace
}  // namespace trireme::nn
