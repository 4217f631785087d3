#include "core/nn/layers/fused.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>

#include <optional>
#include <utility>

#include "core/base/planned_device.h"
#include "core/nn/autograd/saved_state.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

FusedKernels gpu_kernels;
bool has_gpu_kernels = false;

const FusedKernels& kernels_of(const at::Tensor& x) {
  return x.is_cuda() && has_gpu_kernels ? gpu_kernels : plain_kernels();
}

/// A gradient that one part of a split backward pass has computed and the other part needs.
struct Between {
  at::Tensor incoming, gradient;
};

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& bias) {
    auto dense = x.detach().contiguous();
    auto y = kernels_of(x).bias_gelu(dense, bias.contiguous());
    ctx->save_for_backward({dense, bias});
    save_state(ctx, std::make_shared<Between>());
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto between = saved_state<Between>(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &bias = saved[1];
    const bool of_x = ctx->needs_input_grad(0), of_bias = ctx->needs_input_grad(1);
    auto dx = std::exchange(between->gradient, {});
    const auto incoming = std::exchange(between->incoming, {});
    if (!dx.defined() || !incoming.is_same(grads[0]))
      dx = kernels_of(x).bias_gelu_backward(grads[0].contiguous(), x, bias.contiguous());
    if (of_x && !of_bias && bias.requires_grad()) {
      between->incoming = grads[0];
      between->gradient = dx;
    }
    return {of_x ? dx : at::Tensor(), of_bias ? dx.flatten(0, -2).sum(0) : at::Tensor()};
  }
};

struct MaskedAdd : torch::autograd::Function<MaskedAdd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& mask, double scale,
                            const at::Tensor& residual) {
    ctx->save_for_backward({mask});
    ctx->saved_data["scale"] = scale;
    return kernels_of(x).masked_add(x.contiguous(), mask, scale, residual.contiguous());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto mask = ctx->get_saved_variables().front();
    variable_list result(4);
    if (ctx->needs_input_grad(0))
      result[0] = kernels_of(mask).masked_add(grads[0].contiguous(), mask, ctx->saved_data.at("scale").toDouble(),
                                              at::Tensor());
    result[3] = std::move(grads[0]);
    return result;
  }
};

struct AddNorm : torch::autograd::Function<AddNorm> {
  // std::optional, because apply() cannot take an undefined tensor.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& weight, const at::Tensor& bias,
                               const std::optional<at::Tensor>& keep_mask, double scale, double eps) {
    ctx->set_materialize_grads(false);
    const auto mask = keep_mask.value_or(at::Tensor());
    auto [sum, norm, mean, rstd] =
        kernels_of(x).add_norm(x.contiguous(), mask, scale, residual.contiguous(), weight, bias, eps);
    ctx->save_for_backward({sum, mean, rstd, weight, bias, mask});
    ctx->saved_data["scale"] = scale;
    return {sum, norm};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& mask = saved[5];
    const bool of_sum = ctx->needs_input_grad(0) || ctx->needs_input_grad(1);
    std::array<at::Tensor, 3> found{grads[0], {}, {}};  // the norm is not used
    if (grads[1].defined())
      found = kernels_of(saved[0]).add_norm_backward(grads[1].contiguous(), grads[0],
                                                     {saved[0], saved[1], saved[2], saved[3], saved[4]},
                                                     {of_sum, ctx->needs_input_grad(2), ctx->needs_input_grad(3)});
    variable_list result(7);
    if (found[0].defined() && ctx->needs_input_grad(0))
      result[0] = mask.defined() ? kernels_of(mask).masked_add(found[0].contiguous(), mask,
                                                               ctx->saved_data.at("scale").toDouble(), at::Tensor())
                                 : found[0];
    if (ctx->needs_input_grad(1)) result[1] = std::move(found[0]);
    result[2] = std::move(found[1]);
    result[3] = std::move(found[2]);
    return result;
  }
};

}  // namespace

bool can_fuse(std::initializer_list<at::Tensor> tensors) {
  const auto& first = *tensors.begin();
  if (!first.is_floating_point() || at::autocast::is_autocast_enabled(type_of(first.device()))) return false;
  for (const auto& tensor : tensors)
    if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) return false;
  return true;
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias) { return BiasGelu::apply(x, bias); }

at::Tensor masked_add(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& residual) {
  return mask.defined() ? MaskedAdd::apply(x, mask.contiguous(), scale, residual) : residual + x;
}

std::array<at::Tensor, 2> masked_add_norm(const at::Tensor& x, const at::Tensor& mask, double scale,
                                          const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                                          double eps) {
  const auto keep_mask = mask.defined() ? std::optional(mask.contiguous()) : std::nullopt;
  auto made = AddNorm::apply(x, residual, weight, bias, keep_mask, scale, eps);
  return {std::move(made[0]), std::move(made[1])};
}

void register_gpu_kernels(const FusedKernels& kernels) {
  gpu_kernels = kernels;
  has_gpu_kernels = true;
}

bool has_own_kernels(c10::Device device) { return device.is_cuda() && has_gpu_kernels; }

}  // namespace trireme::nn
