#include "core/booster/kernel_choice.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/base/planned_device.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/fused.h"
#include "core/nn/layers/kernels.h"

namespace trireme {
namespace {

using nn::AttentionKernel;

[[noreturn]] void refuse_kernel(const char* key, const std::string& why) {
  throw ConfigError(fmt::format("train.{}: {}", key, why));
}

AttentionKernel attention_of(const KernelOptions& options) {
  const auto& name = options.attention_kernel;
  if (name == "flash") return AttentionKernel::flash;
  if (name == "memory_efficient") return AttentionKernel::memory_efficient;
  if (name == "cudnn") return AttentionKernel::cudnn;
  if (name == "math" || !options.enable_flash_attention.value_or(true)) return AttentionKernel::math;
  return AttentionKernel::fastest;
}

nn::Kernels kernels_of(const KernelOptions& options, const nn::KernelLayerCounts& counts, c10::Device device) {
  const bool faster = options.enable_all_optimization && type_of(device) == c10::kCPU && counts.dropout > 0;
  return {.attention = attention_of(options),
          .norm = options.enable_fused_normalization.value_or(false),
          .pointwise = options.enable_jit_fused.value_or(faster)};
}

/// The key that requests a fused attention kernel; null: none does.
const char* requesting_key(const KernelOptions& options) {
  if (options.attention_kernel && *options.attention_kernel != "math") return "attention_kernel";
  return options.enable_flash_attention.value_or(false) ? "enable_flash_attention" : nullptr;
}

bool is_masked(const nn::Model& model, const nn::SelfAttention& layer) {
  const auto side_inputs = model.side_input_names(), masks = layer.mask_names();
  return std::find_first_of(side_inputs.begin(), side_inputs.end(), masks.begin(), masks.end()) != side_inputs.end();
}

/// LibTorch's kernel for the model's attention, if `wanted` leaves the choice or is that one; "": there is none.
std::string attention_kernel(nn::Model& model, const TrainOptions& train, c10::Device device, AttentionKernel wanted) {
  constexpr std::int64_t kTokens = 128;  // any number: the choice depends on head size, dtype, device and the mask
  const auto dtype = Precision::pure(train.precision).parameters;
  const auto& layer = *nn::layers_in<nn::SelfAttention>(model).front();  // all of a model are alike
  return nn::attention_kernel(layer.heads(), kTokens, layer.head_size(), dtype, device, wanted,
                              is_masked(model, layer));
}

/// The fused kernel of the model's attention; "" when there is none. @throws ConfigError when one is requested
std::string fused_attention(nn::Model& model, const TrainOptions& train, c10::Device device) {
  const auto& options = train.kernels;
  auto kernel = attention_kernel(model, train, device, attention_of(options));
  if (const auto* key = requesting_key(options); kernel.empty() && key != nullptr) {
    const auto& layer = *nn::layers_in<nn::SelfAttention>(model).front();
    refuse_kernel(key, fmt::format("LibTorch has no {} attention for {} tensors, heads of {} features{} and the device "
                                   "{}; remove it, or choose another kernel or precision",
                                   options.attention_kernel.value_or("fused"),
                                   c10::toString(Precision::pure(train.precision).parameters), layer.head_size(),
                                   is_masked(model, layer) ? ", a padding mask" : "", device.str()));
  }
  return kernel;
}

std::string attention_line(nn::Model& model, const TrainOptions& train, c10::Device device) {
  if (attention_of(train.kernels) == AttentionKernel::math) return "attention scores are materialized";
  if (nn::count_kernel_layers(model).attention_with_dropout > 0)
    return "attention scores are materialized, because of their dropout";
  const auto kernel = fused_attention(model, train, device);
  return kernel.empty() ? "attention scores are materialized, because LibTorch has no fused kernel for this case"
                        : fmt::format("attention by LibTorch's {} kernel", kernel);
}

/// The rules that need only the model's layers.
void check_layer_counts(const KernelOptions& options, const nn::KernelLayerCounts& counts) {
  for (const auto& [set, key, count, what] :
       {std::tuple{options.attention_kernel.has_value(), "attention_kernel", counts.attention, "attention layer"},
        std::tuple{options.enable_flash_attention.has_value(), "enable_flash_attention", counts.attention,
                   "attention layer"},
        std::tuple{options.enable_fused_normalization.has_value(), "enable_fused_normalization", counts.norm,
                   "layer norm"},
        std::tuple{options.enable_jit_fused.has_value(), "enable_jit_fused", counts.pointwise,
                   "dropout and no linear layer with GELU"}})
    if (set && count == 0) refuse_kernel(key, fmt::format("has no effect: the model has no {}; remove it", what));
  if (const auto* key = requesting_key(options); key != nullptr && counts.attention_with_dropout > 0)
    refuse_kernel(key,
                  "is not possible with attention dropout, whose mask (the same in every layout) is applied to "
                  "materialized scores; set model.attention_dropout = 0, or remove it");
}

bool same(const nn::Kernels& a, const nn::Kernels& b) {
  return a.attention == b.attention && a.norm == b.norm && a.pointwise == b.pointwise;
}

}  // namespace

bool runs_on_cpu(const RunSettings& run) {
  return run.device == "cpu" || (run.device == "auto" && comm::cuda_device_count() == 0);
}

void check_kernels(nn::Model& model, const RunSettings& run) {
  const auto counts = nn::count_kernel_layers(model);
  check_layer_counts(run.train.kernels, counts);
  if (requesting_key(run.train.kernels) != nullptr && runs_on_cpu(run)) fused_attention(model, run.train, at::kCPU);
}

nn::Kernels chosen_kernels(nn::Model& model, const TrainOptions& train, c10::Device device) {
  return kernels_of(train.kernels, nn::count_kernel_layers(model), device);
}

bool has_attention_kernel(nn::Model& model, const TrainOptions& train, c10::Device device, nn::AttentionKernel kernel) {
  return !attention_kernel(model, train, device, kernel).empty();
}

std::string choose_kernels(nn::Model& model, const TrainOptions& train, const Precision& precision,
                           c10::Device device) {
  const auto& options = train.kernels;
  const auto counts = nn::count_kernel_layers(model);
  check_layer_counts(options, counts);
  const auto kernels = kernels_of(options, counts, device);
  nn::choose_kernels(model, kernels);
  const bool own = nn::has_own_kernels(device);
  std::vector<std::string> chosen;
  if ((options.enable_flash_attention || options.attention_kernel || options.enable_all_optimization) &&
      counts.attention > 0)
    chosen.push_back(attention_line(model, train, device));
  const bool norm = kernels.norm && counts.norm > 0, pointwise = kernels.pointwise && counts.pointwise > 0;
  if (precision.autocasts() && (norm || pointwise))
    chosen.emplace_back(
        fmt::format("norms, GELU and dropout are not fused: in {}, this plugin uses autocast, which chooses the dtype "
                    "of each step; low_level_zero, gemini and hybrid_parallel compute in {} without it",
                    train.precision, train.precision));
  else if (norm)
    chosen.push_back(own ? "residual sum and layer norm in one fused kernel"
                         : "residual sum and layer norm by LibTorch's kernels");
  if (!precision.autocasts() && pointwise)
    chosen.push_back(own ? "bias and GELU, dropout and residual sum in fused kernels"
                         : "bias and GELU by LibTorch's kernels, dropout and residual sum in one pass");
  if (options.enable_all_optimization && device.is_cuda() && !kernels.norm && !kernels.pointwise)
    chosen.emplace_back(
        "norms, GELU and dropout by LibTorch's kernels: Trireme's have not been measured on GPUs yet; "
        "enable_fused_normalization and enable_jit_fused turn them on");
  auto without = options;
  without.enable_all_optimization = false;
  if (options.enable_all_optimization && same(kernels, kernels_of(without, counts, device)))
    chosen.emplace_back("enable_all_optimization changes nothing for this model on this device");
  return chosen.empty() ? ""
                        : fmt::format("kernels ({}): {}", device.is_cuda() ? "GPU" : "CPU", fmt::join(chosen, "; "));
}

}  // namespace trireme
