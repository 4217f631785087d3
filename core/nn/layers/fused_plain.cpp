// Fused steps with LibTorch's kernels, and with one pass of our own for mask and sum on the CPU.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "core/base/planned_device.h"
#include "core/base/vector_widths.h"
#include "core/nn/layers/fused.h"

namespace trireme::nn {
namespace {

TRIREME_VECTOR_WIDTHS void mask_and_add(const float* x, const bool* mask, float scale, const float* residual,
                                        float* out, std::int64_t begin, std::int64_t end) {
  if (residual == nullptr)
    for (auto i = begin; i < end; ++i) out[i] = x[i] * (static_cast<float>(mask[i]) * scale);
  else
    for (auto i = begin; i < end; ++i) out[i] = residual[i] + x[i] * (static_cast<float>(mask[i]) * scale);
}

TRIREME_VECTOR_WIDTHS void mask_and_add(const double* x, const bool* mask, double scale, const double* residual,
                                        double* out, std::int64_t begin, std::int64_t end) {
  if (residual == nullptr)
    for (auto i = begin; i < end; ++i) out[i] = x[i] * (static_cast<double>(mask[i]) * scale);
  else
    for (auto i = begin; i < end; ++i) out[i] = residual[i] + x[i] * (static_cast<double>(mask[i]) * scale);
}

template <class T>
at::Tensor one_pass(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual) {
  auto out = at::empty_like(x);
  const auto* from = x.const_data_ptr<T>();
  const auto* keep_mask = mask.const_data_ptr<bool>();
  const auto* beside = residual.defined() ? residual.const_data_ptr<T>() : nullptr;
  auto* to = out.template mutable_data_ptr<T>();
  at::parallel_for(0, x.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    mask_and_add(from, keep_mask, static_cast<T>(scale), beside, to, begin, end);
  });
  return out;
}

at::Tensor masked_sum(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual) {
  const bool real = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
  if (x.is_meta() && type_of(x.device()) == c10::kCPU && real) return at::empty_like(x);
  if (x.is_cpu() && x.scalar_type() == at::kFloat) return one_pass<float>(x, mask, scale, residual);
  if (x.is_cpu() && x.scalar_type() == at::kDouble) return one_pass<double>(x, mask, scale, residual);
  auto y = at::native_dropout_backward(x, mask, scale);
  return residual.defined() ? y.add_(residual) : y;
}

at::Tensor biased_gelu(at::Tensor& x, const at::Tensor& bias) { return at::gelu(x.add_(bias)); }

at::Tensor biased_gelu_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor&) {
  return at::gelu_backward(gradient, x);
}

std::array<at::Tensor, 4> norm_of_sum(const at::Tensor& x, const at::Tensor& mask, double scale,
                                      const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                      double eps) {
  auto sum = mask.defined() ? masked_sum(x, mask, scale, residual) : residual + x;
  auto [norm, mean, rstd] = at::native_layer_norm(sum, weight.sizes(), weight, bias, eps);
  return {std::move(sum), std::move(norm), std::move(mean), std::move(rstd)};
}

std::array<at::Tensor, 3> norm_of_sum_backward(const at::Tensor& of_norm, const at::Tensor& of_sum,
                                               const FusedKernels::NormSaved& saved, std::array<bool, 3> wanted) {
  auto [sum, weight, bias] = at::native_layer_norm_backward(of_norm, saved.sum, saved.weight.sizes(), saved.mean,
                                                            saved.rstd, saved.weight, saved.bias, wanted);
  if (wanted[0] && of_sum.defined()) sum.add_(of_sum);
  return {std::move(sum), std::move(weight), std::move(bias)};
}

}  // namespace

const FusedKernels& plain_kernels() {
  static const FusedKernels kernels{biased_gelu, biased_gelu_backward, masked_sum, norm_of_sum, norm_of_sum_backward};
  return kernels;
}

}  // namespace trireme::nn
