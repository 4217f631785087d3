#include "models/vit/timm.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "models/vit/kind.h"

namespace trireme::models::vit {
namespace {

/// timm's default, which is not Hugging Face's.
constexpr double kTimmLayerNormEps = 1e-6;

/// What an architecture's name says: vit_SIZE_patchP_PIXELS, or the same with deit.
struct Architecture {
  std::string size;
  std::int64_t patch = 0, pixels = 0;
};

std::optional<Architecture> parse_architecture(const std::string& name) {
  const auto parts = text::split(name, '_');
  if (parts.size() != 4 || !parts[2].starts_with("patch")) return std::nullopt;
  const auto patch = text::integer(std::string_view(parts[2]).substr(5)), pixels = text::integer(parts[3]);
  for (const auto* known : {"tiny", "small", "base", "large"})
    if (parts[1] == known && patch >= 1 && pixels >= 1) return Architecture{parts[1], *patch, *pixels};
  return std::nullopt;
}

}  // namespace

nn::Naming timm_naming() {
  constexpr const char* kOther =
      "is of a variant of the Vision Transformer that this model cannot compute; use weights "
      "without it";
  constexpr const char* kDistilled =
      "is of a distilled DeiT, which has a second token and a second head; use the DeiT without them, such as "
      "deit_tiny_patch16_224 in place of deit_tiny_distilled_patch16_224";
  return {.library = "timm",
          .names = {{"vit.embeddings.cls_token", "cls_token"},
                    {"vit.embeddings.position_embeddings", "pos_embed"},
                    {"vit.embeddings.patch_embeddings.projection.*", "patch_embed.proj.*"},
                    {"vit.encoder.layer.*.layernorm_before.*", "blocks.*.norm1.*"},
                    {"vit.encoder.layer.*.attention.attention.query.*", "blocks.*.attn.qkv.*", 0, 3},
                    {"vit.encoder.layer.*.attention.attention.key.*", "blocks.*.attn.qkv.*", 1, 3},
                    {"vit.encoder.layer.*.attention.attention.value.*", "blocks.*.attn.qkv.*", 2, 3},
                    {"vit.encoder.layer.*.attention.output.dense.*", "blocks.*.attn.proj.*"},
                    {"vit.encoder.layer.*.layernorm_after.*", "blocks.*.norm2.*"},
                    {"vit.encoder.layer.*.intermediate.dense.*", "blocks.*.mlp.fc1.*"},
                    {"vit.encoder.layer.*.output.dense.*", "blocks.*.mlp.fc2.*"},
                    {"vit.layernorm.*", "norm.*"},
                    {"classifier.*", "head.*"}},
          .unsupported = {{"dist_token", kDistilled},
                          {"head_dist.*", kDistilled},
                          {"reg_token", kOther},
                          {"pre_logits.fc.*", kOther},
                          {"fc_norm.*", kOther},
                          {"attn_pool.latent", kOther},
                          {"blocks.*.gamma_1", kOther},
                          {"blocks.*.gamma_2", kOther},
                          {"norm_pre.*", kOther},
                          {"blocks.*.attn.q_norm.*", kOther},
                          {"blocks.*.attn.k_norm.*", kOther},
                          {"blocks.*.ls1.gamma", kOther},
                          {"blocks.*.ls2.gamma", kOther}}};
}

nlohmann::json hf_config_of_timm(const nlohmann::json& values, const std::string& file) {
  const auto written = values.is_object() ? values.value("architecture", nlohmann::json()) : nlohmann::json();
  const auto name = written.is_string() ? written.get<std::string>() : std::string();
  if (!name.starts_with("vit_") && !name.starts_with("deit_")) return nullptr;
  const auto architecture = parse_architecture(name);
  if (!architecture)
    throw ConfigError(
        fmt::format("model.weights: {} is for \"{}\"; of timm's Vision Transformers, vit_SIZE_patchP_PIXELS and "
                    "deit_SIZE_patchP_PIXELS are supported, with the size tiny, small, base or large",
                    file, name));
  Options sizes;
  sizes.size = architecture->size;
  nn::apply_preset(fields(), &sizes);
  return {{"hidden_size", *sizes.hidden_size},       {"num_hidden_layers", *sizes.num_layers},
          {"num_attention_heads", *sizes.num_heads}, {"intermediate_size", *sizes.intermediate_size},
          {"patch_size", architecture->patch},       {"image_size", architecture->pixels},
          {"layer_norm_eps", kTimmLayerNormEps}};
}

}  // namespace trireme::models::vit
