#include "plugins/hybrid_parallel/kernels.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/attention.h"
#include "core/nn/block.h"
#include "core/nn/fused.h"

namespace trireme::plugins {
namespace {

using shardformer::Sequence;

using Key = std::pair<const char*, std::optional<bool> KernelKeys::*>;
constexpr Key kFlash{"enable_flash_attention", &KernelKeys::enable_flash_attention};
constexpr Key kNorm{"enable_fused_normalization", &KernelKeys::enable_fused_normalization};
constexpr Key kJit{"enable_jit_fused", &KernelKeys::enable_jit_fused};
constexpr Key kOverlap{"enable_sequence_overlap", &KernelKeys::enable_sequence_overlap};

/// The model's first attention layer, since all of a model are alike. Null when there is none.
const nn::SelfAttention* an_attention(nn::Model& model) {
  const nn::SelfAttention* found = nullptr;
  model.apply([&](torch::nn::Module& module) {
    if (const auto* attention = dynamic_cast<const nn::SelfAttention*>(&module); attention != nullptr && !found)
      found = attention;
  });
  return found;
}

std::string attention_line(nn::Model& model, const KernelKeys& keys, at::ScalarType dtype, c10::Device device) {
  constexpr std::int64_t kTokens = 128;  // any number, because the choice depends on head size, dtype and device
  if (!keys.enable_flash_attention.value_or(true)) return "attention scores are materialized";
  if (nn::kernel_places(model).attention_with_dropout > 0)
    return "attention scores are materialized, because of their dropout";
  const auto& layer = *an_attention(model);
  const auto kernel = nn::attention_kernel(layer.heads(), kTokens, layer.head_size(), dtype, device);
  if (kernel.empty() && keys.enable_flash_attention)
    throw ConfigError(
        fmt::format("plugin.hybrid_parallel.{}: LibTorch has no fused attention for {} tensors, heads of {} features "
                    "and the device {}; remove it, or choose another precision",
                    kFlash.first, c10::toString(dtype), layer.head_size(), device.str()));
  return kernel.empty() ? "attention scores are materialized, because LibTorch has no fused kernel for this case"
                        : fmt::format("attention by LibTorch's {} kernel", kernel);
}

}  // namespace

void check_kernels(const config::Table* section, const KernelKeys& keys, Sequence mode) {
  if (keys.enable_all_optimization)
    for (const auto& [name, key] : {kFlash, kNorm, kJit, kOverlap})
      if (!(keys.*key).value_or(true))
        config::fail(section, name, "is false, but enable_all_optimization = true turns it on; remove one of the two");
  if (!keys.enable_sequence_overlap) return;
  if (mode == Sequence::none)
    config::fail(section, kOverlap.first,
                 "has no effect without sequence parallelism; remove it, or set sequence_parallelism_mode");
  if (!shardformer::overlaps(mode))
    config::fail(section, kOverlap.first, "has no effect: all_to_all has no computation to overlap with; remove it");
}

void check_kernels(const config::Table* section, const KernelKeys& keys, Sequence mode, nn::Model& model) {
  const auto places = nn::kernel_places(model);
  for (const auto& [key, count, what] :
       {std::tuple{kFlash, places.attention, "attention layer"}, std::tuple{kNorm, places.norm, "layer norm"},
        std::tuple{kJit, places.pointwise, "dropout and no linear layer with GELU"}})
    if (keys.*key.second && count == 0)
      config::fail(section, key.first, fmt::format("has no effect: the model has no {}; remove it", what));
  if (keys.enable_flash_attention && mode == Sequence::ring_attn)
    config::fail(section, kFlash.first,
                 "has no effect: ring_attn uses its own attention, which never materializes all scores; remove it");
  if (keys.enable_flash_attention.value_or(false) && places.attention_with_dropout > 0)
    config::fail(section, kFlash.first,
                 "is not possible with attention dropout, whose mask (the same in every layout) is applied to "
                 "materialized scores; set model.attention_dropout = 0, or remove it");
}

std::string choose_kernels(nn::Model& model, const KernelKeys& keys, Sequence mode, at::ScalarType dtype,
                           c10::Device device) {
  const auto places = nn::kernel_places(model);
  const auto kernels = keys.kernels(places, device);
  const bool own = nn::has_own_kernels(device);
  nn::choose_kernels(model, kernels);
  std::vector<std::string> chosen;
  if ((keys.enable_flash_attention || keys.enable_all_optimization) && places.attention > 0 &&
      mode != Sequence::ring_attn)
    chosen.push_back(attention_line(model, keys, dtype, device));
  if (kernels.norm && places.norm > 0)
    chosen.push_back(own ? "residual sum and layer norm in one fused kernel"
                         : "residual sum and layer norm by LibTorch's kernels");
  if (kernels.pointwise && places.pointwise > 0)
    chosen.push_back(own ? "bias and GELU, dropout and residual sum in fused kernels"
                         : "bias and GELU by LibTorch's kernels, dropout and residual sum in one pass");
  if (keys.enable_all_optimization && device.is_cuda() && !kernels.norm && !kernels.pointwise)
    chosen.emplace_back(
        "norms, GELU and dropout by LibTorch's kernels: Trireme's have not been measured on GPUs yet; "
        "enable_fused_normalization and enable_jit_fused turn them on");
  if (!keys.overlap()) chosen.emplace_back("sequence-parallel communication is not overlapped");
  return chosen.empty() ? ""
                        : fmt::format("kernels ({}): {}", device.is_cuda() ? "GPU" : "CPU", fmt::join(chosen, "; "));
}

}  // namespace trireme::plugins
