#include "models/vit/timm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "models/timm_config.h"
#include "models/vit/kind.h"

namespace trireme::models::vit {
namespace {

/// timm's default, which is not Hugging Face's.
constexpr double kTimmLayerNormEps = 1e-6;
constexpr double kTimmMlpRatio = 4;
/// Its arguments can all be replaced.
constexpr const char* kTimmArchitecture = "vit_base_patch16_224";

/// Arguments of timm's VisionTransformer that are numbers of Hugging Face's config.json.
constexpr std::pair<const char*, const char*> kTimmNumbers[] = {
    {"img_size", "image_size"},   {"patch_size", "patch_size"},   {"in_chans", "num_channels"},
    {"embed_dim", "hidden_size"}, {"depth", "num_hidden_layers"}, {"num_heads", "num_attention_heads"},
    {"qkv_bias", "qkv_bias"}};
/// Names of activations in timm; others are the same. The first of a name is the one that is read.
constexpr std::pair<const char*, const char*> kTimmActs[] = {{"gelu_tanh", "gelu_pytorch_tanh"},
                                                             {"gelu_tanh", "gelu_new"}};

/// timm multiplies by mlp_ratio and rounds down.
std::int64_t timm_mlp_size(std::int64_t hidden, double ratio) {
  return static_cast<std::int64_t>(static_cast<double>(hidden) * ratio);
}

double timm_mlp_ratio(std::int64_t hidden, std::int64_t intermediate) {
  const auto ratio = static_cast<double>(intermediate) / static_cast<double>(hidden);
  return timm_mlp_size(hidden, ratio) < intermediate ? std::nextafter(ratio, INFINITY) : ratio;
}

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

/// Replaces keys of Hugging Face's config.json by the arguments of a model of timm. @throws ConfigError
void take_arguments(const nlohmann::json& arguments, nlohmann::json& config, const std::string& file) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format("model.weights: {}: model_args {}", file, what));
  };
  if (!arguments.is_object()) refuse("is no object");
  // What timm's models have if nothing else is said.
  static const nlohmann::json usual{{"class_token", true},     {"global_pool", "token"}, {"init_values", nullptr},
                                    {"no_embed_class", false}, {"reg_tokens", 0},        {"pre_norm", false},
                                    {"qk_norm", false}};
  std::optional<double> ratio;
  if (arguments.contains("embed_dim")) ratio = kTimmMlpRatio;
  for (const auto& [name, value] : arguments.items()) {
    const auto* number = std::find_if(std::begin(kTimmNumbers), std::end(kTimmNumbers),
                                      [&, key = name](const auto& each) { return key == each.first; });
    if (number != std::end(kTimmNumbers)) {
      config[number->second] = value;
    } else if (name == "mlp_ratio" && value.is_number()) {
      ratio = value.get<double>();
    } else if (name == "act_layer") {
      const auto* act = std::find_if(std::begin(kTimmActs), std::end(kTimmActs),
                                     [&, act = value](const auto& each) { return act == each.first; });
      config["hidden_act"] = act == std::end(kTimmActs) ? value : nlohmann::json(act->second);
    } else if (!name.ends_with("_rate") && !(usual.contains(name) && usual[name] == value)) {
      refuse(fmt::format("has {} = {}, which this model does not have", name, value.dump()));
    }
  }
  const auto& hidden = config["hidden_size"];
  if (ratio && hidden.is_number_integer()) config["intermediate_size"] = timm_mlp_size(hidden, *ratio);
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
  nlohmann::json config{{"hidden_size", *sizes.hidden_size},       {"num_hidden_layers", *sizes.num_layers},
                        {"num_attention_heads", *sizes.num_heads}, {"intermediate_size", *sizes.intermediate_size},
                        {"patch_size", architecture->patch},       {"image_size", architecture->pixels},
                        {"layer_norm_eps", kTimmLayerNormEps}};
  if (const auto arguments = values.find("model_args"); arguments != values.end())
    take_arguments(*arguments, config, file);
  return config;
}

nlohmann::json timm_config(const nlohmann::json& config, const nlohmann::json& preprocessor) {
  if (const double eps = config.at("layer_norm_eps"); eps != kTimmLayerNormEps)
    throw ConfigError(
        fmt::format("this model has layer_norm_eps = {}, but timm's Vision Transformers always compute with {}; train "
                    "with model.layer_norm_eps = {}",
                    eps, kTimmLayerNormEps, kTimmLayerNormEps));
  nlohmann::json arguments{{"mlp_ratio", timm_mlp_ratio(config.at("hidden_size"), config.at("intermediate_size"))},
                           {"act_layer", config.at("hidden_act")}};
  for (const auto& [timm, ours] : kTimmNumbers) arguments[timm] = config.at(ours);
  for (const auto& [timm, ours] : kTimmActs)
    if (arguments["act_layer"] == ours) arguments["act_layer"] = timm;
  const auto& labels = config.at("id2label");
  nlohmann::json out{{"architecture", kTimmArchitecture},
                     {"num_classes", labels.size()},
                     {"num_features", config.at("hidden_size")},
                     {"num_channels", config.at("num_channels")},
                     {"global_pool", "token"},
                     {"model_args", arguments},
                     {"id2label", labels},
                     {"label2id", config.at("label2id")}};
  if (const auto dtype = config.find("dtype"); dtype != config.end()) out["dtype"] = *dtype;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < labels.size(); ++i) names.push_back(labels.at(std::to_string(i)));
  add_timm_classes(out, names, "patch_embed.proj", "head");
  out["pretrained_cfg"]["fixed_input_size"] = true;
  if (!preprocessor.is_null()) add_timm_preparation(out, preprocessor);
  return out;
}

}  // namespace trireme::models::vit
