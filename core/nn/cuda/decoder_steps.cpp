// The steps of a decoder's layers on a GPU (core/nn/layers/rms_norm_step.h, gated_step.h): libtrireme_cuda registers
// them when it is loaded. Norms are LibTorch's fused kernels, gated products our own.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "core/nn/cuda/fused_kernels.h"
#include "core/nn/cuda/kernel_calls.h"
#include "core/nn/layers/gated_step.h"
#include "core/nn/layers/rms_norm_step.h"

namespace trireme::nn {
namespace {

using Optional = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_on_cuda(const at::Tensor& x, const Optional& residual,
                                                            const at::Tensor& weight, double eps) {
  auto sum = residual ? *residual + x : at::Tensor();
  const auto& in = residual ? sum : x;
  if (in.scalar_type() != weight.scalar_type() || in.numel() == 0) {
    auto made = rms_norm_by_operators(in, std::nullopt, weight, eps);
    std::get<2>(made) = sum;
    return made;
  }
  auto [norm, rstd] = at::_fused_rms_norm(in, weight.sizes(), weight, eps);
  return {std::move(norm), rstd.flatten(), std::move(sum)};
}

std::tuple<at::Tensor, at::Tensor> norm_backward_on_cuda(const at::Tensor& of_norm, const Optional& of_sum,
                                                         const at::Tensor& sum, const at::Tensor& rstd,
                                                         const at::Tensor& weight, std::array<bool, 2> wanted) {
  if (sum.scalar_type() != weight.scalar_type() || sum.numel() == 0)
    return rms_norm_backward_by_operators(of_norm, of_sum, sum, rstd, weight, wanted);
  const auto per_row = rstd.view(sum.sizes().slice(0, static_cast<std::size_t>(sum.dim() - 1))).unsqueeze(-1);
  auto made = at::_fused_rms_norm_backward(of_norm, sum, weight.sizes(), per_row, weight, wanted);
  if (wanted[0] && of_sum) std::get<0>(made).add_(*of_sum);
  return made;
}

at::Tensor gate_on_cuda(const at::Tensor& gate, const at::Tensor& up) {
  const auto type = dtype_of(gate);
  if (!type) return gate_by_operators(gate, up);
  const c10::cuda::CUDAGuard guard(gate.device());
  auto out = at::empty_like(gate);
  C10_CUDA_CHECK(
      gate_on_gpu(*type, gate.const_data_ptr(), up.const_data_ptr(), out.mutable_data_ptr(), gate.numel(), stream()));
  return out;
}

std::tuple<at::Tensor, at::Tensor> gate_backward_on_cuda(const at::Tensor& gradient, const at::Tensor& gate,
                                                         const at::Tensor& up) {
  const auto type = dtype_of(gate);
  if (!type) return gate_backward_by_operators(gradient, gate, up);
  const c10::cuda::CUDAGuard guard(gate.device());
  auto of_gate = at::empty_like(gate), of_up = at::empty_like(up);
  C10_CUDA_CHECK(gate_backward_on_gpu(*type,
                                      {gradient.const_data_ptr(), gate.const_data_ptr(), up.const_data_ptr(),
                                       of_gate.mutable_data_ptr(), of_up.mutable_data_ptr()},
                                      gate.numel(), stream()));
  return {std::move(of_gate), std::move(of_up)};
}

}  // namespace
}  // namespace trireme::nn

TORCH_LIBRARY_IMPL(trireme, CUDA, library) {
  library.impl("rms_norm", trireme::nn::norm_on_cuda);
  library.impl("rms_norm_backward", trireme::nn::norm_backward_on_cuda);
  library.impl("gate", trireme::nn::gate_on_cuda);
  library.impl("gate_backward", trireme::nn::gate_backward_on_cuda);
}
