#include "models/vit/kind.h"

#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/vit/timm.h"
#include "models/vit/vit.h"

namespace trireme::models::vit {
namespace {

/// One number for squares, else [height, width]. Unset: the file has no size.
std::optional<nn::ImageSize> image_size_of(const nlohmann::json& stored, const HfConfig& config) {
  if (stored.is_null()) return std::nullopt;
  const auto is_side = [](const nlohmann::json& side) {
    return read_number<std::int64_t>(side, size_rules()).has_value();
  };
  if (is_side(stored)) return stored.get<std::int64_t>();
  if (!stored.is_array() || stored.size() != 2 || !is_side(stored[0]) || !is_side(stored[1]))
    config.refuse(fmt::format("has image_size = {}; it must be {}, or [height, width]", stored.dump(),
                              number_text<std::int64_t>(size_rules())));
  return nn::ImageSize(stored.get<nn::ImageSize::List>());
}

}  // namespace

const HfKeys& hf_keys() {
  static const HfKeys keys{.used = {{"hidden_size", 768},
                                    {"num_hidden_layers", 12},
                                    {"num_attention_heads", 12},
                                    {"intermediate_size", 3072},
                                    {"patch_size", 16},
                                    {"qkv_bias", true},
                                    {"layer_norm_eps", 1e-12},
                                    {"hidden_dropout_prob", 0.0},
                                    {"attention_probs_dropout_prob", 0.0},
                                    {"initializer_range", 0.02},
                                    {"image_size", 224},
                                    {"num_channels", 3},
                                    {"hidden_act", "gelu"}},
                           .fixed = nlohmann::json::object(),
                           // Of the model without a head, and of the one that reconstructs pixels.
                           .no_effect = {"encoder_stride", "pooler_act", "pooler_output_size"}};
  return keys;
}

bool Kind::from_hf(void* options, const nlohmann::json& values, const std::string& file) const {
  const auto timm = hf_config_of_timm(values, file);
  if (timm.is_null() && (!values.is_object() || values.value("model_type", nlohmann::json()) != "vit")) return false;
  const HfConfig config(fields(), hf_keys(), timm.is_null() ? values : timm, file);
  auto& out = *static_cast<Options*>(options);
  const Options user = out;
  apply_size(out);
  const auto take_size = [&](const char* name, const char* key, std::optional<std::int64_t> Options::*member) {
    if (user.size && !(user.*member))
      config.take(name, key, out.*member, "size");
    else
      config.take(name, key, out.*member);
  };
  take_size("hidden_size", "hidden_size", &Options::hidden_size);
  take_size("num_hidden_layers", "num_layers", &Options::num_layers);
  take_size("num_attention_heads", "num_heads", &Options::num_heads);
  take_size("intermediate_size", "intermediate_size", &Options::intermediate_size);
  if (out.hidden_size && out.num_heads && *out.hidden_size % *out.num_heads != 0)
    config.refuse(
        fmt::format("has hidden_size = {} and num_attention_heads = {}; the first must be a multiple of the "
                    "second",
                    *out.hidden_size, *out.num_heads));
  config.take("patch_size", "patch_size", out.patch_size);
  config.take("qkv_bias", "qkv_bias", out.qkv_bias);
  config.take("hidden_act", "hidden_act", out.hidden_act);
  config.take_default("layer_norm_eps", "layer_norm_eps", out.layer_norm_eps);
  config.take_default("hidden_dropout_prob", "dropout", out.dropout);
  config.take_default("attention_probs_dropout_prob", "attention_dropout", out.attention_dropout);
  config.take_default("initializer_range", "initializer_range", out.initializer_range);
  config.take("num_channels", "channels", out.weights_channels);
  out.weights_image_size = image_size_of(config.value("image_size"), config);
  return true;
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Vit>(options); }

nlohmann::json Kind::to_hf(const void* options) const {
  const auto& o = *static_cast<const Options*>(options);
  const auto& [height, width] = o.image_size;
  nlohmann::json config{{"architectures", {"ViTForImageClassification"}},
                        {"model_type", "vit"},
                        {"hidden_size", *o.hidden_size},
                        {"num_hidden_layers", *o.num_layers},
                        {"num_attention_heads", *o.num_heads},
                        {"intermediate_size", *o.intermediate_size},
                        {"hidden_act", *o.hidden_act},
                        {"hidden_dropout_prob", *o.dropout},
                        {"attention_probs_dropout_prob", *o.attention_dropout},
                        {"initializer_range", *o.initializer_range},
                        {"layer_norm_eps", *o.layer_norm_eps},
                        {"image_size", height == width ? nlohmann::json(height) : nlohmann::json{height, width}},
                        {"patch_size", *o.patch_size},
                        {"num_channels", o.channels},
                        {"qkv_bias", *o.qkv_bias}};
  add_labels(config, o.classes, o.class_names);
  return config;
}

}  // namespace trireme::models::vit
