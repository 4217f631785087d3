#include "models/vit/kind.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "models/vit/options.h"
#include "models/vit/vit.h"

namespace trireme::models::vit {
namespace {

const Options& view(const void* options) { return *static_cast<const Options*>(options); }
Options& view(void* options) { return *static_cast<Options*>(options); }

/// Copies config.json's `name` into `option` if the user did not set it; otherwise the two must be equal. `cause`: the
/// key that the user wrote, if it is not `key`.
template <class T>
void take(const nlohmann::json& config, const char* name, const char* key, std::optional<T>& option,
          const char* cause = nullptr) {
  if (!config.contains(name) || config[name].is_null()) return;
  T value;
  try {
    value = config[name].get<T>();
  } catch (const nlohmann::json::exception&) {
    const char* wanted = std::is_same_v<T, bool> ? "true or false" : std::is_integral_v<T> ? "an integer" : "a number";
    throw ConfigError(fmt::format("model.weights: the weights' config.json has {} = {}; it must be {}", name,
                                  config[name].dump(), wanted));
  }
  if (option && *option != value)
    throw ConfigError(
        fmt::format("model.{}: {} = {}, but the weights' config.json says {} = {}; leave {} out, or choose other "
                    "weights",
                    cause != nullptr ? cause : key, key, *option, name, value, cause != nullptr ? cause : key));
  option = value;
}

/// For options that may differ from the weights: the user's value takes precedence.
template <class T>
void take_default(const nlohmann::json& config, const char* name, const char* key, std::optional<T>& option) {
  if (!option) take(config, name, key, option);
}

/// The values that a config.json implies for missing keys.
nlohmann::json hf_defaults() {
  return {{"hidden_size", 768},        {"num_hidden_layers", 12},    {"num_attention_heads", 12},
          {"intermediate_size", 3072}, {"patch_size", 16},           {"qkv_bias", true},
          {"layer_norm_eps", 1e-12},   {"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0},
          {"initializer_range", 0.02}, {"image_size", 224},          {"num_channels", 3}};
}

}  // namespace

const FieldTable& Kind::fields() const { return vit::fields(); }

std::shared_ptr<void> Kind::default_options() const { return std::make_shared<Options>(); }

bool Kind::from_hf(void* options, const nlohmann::json& file) const {
  if (!file.is_object() || file.value("model_type", nlohmann::json()) != "vit") return false;
  auto& out = view(options);
  nlohmann::json config = hf_defaults();
  config.update(file);
  const auto act = config.value("hidden_act", nlohmann::json("gelu"));
  if (act != "gelu")
    throw ConfigError(fmt::format(
        "model.weights: the weights' config.json has hidden_act = {}; only \"gelu\" is supported", act.dump()));
  Options preset = out;  // values implied by the user's size count as set by the user
  if (out.size) vit::resolve(preset, {.image_size = 16 * preset.patch_size.value_or(16), .classes = 1});
  const auto take_sized = [&](const char* name, const char* key, std::optional<std::int64_t> Options::*member) {
    const bool by_size = out.size && !(out.*member);
    if (by_size) out.*member = preset.*member;
    if (by_size)
      take(config, name, fmt::format("size = \"{}\": {}", *out.size, key).c_str(), out.*member, "size");
    else
      take(config, name, key, out.*member);
  };
  take_sized("hidden_size", "hidden_size", &Options::hidden_size);
  take_sized("num_hidden_layers", "num_layers", &Options::num_layers);
  take_sized("num_attention_heads", "num_heads", &Options::num_heads);
  take_sized("intermediate_size", "intermediate_size", &Options::intermediate_size);
  if (out.hidden_size && out.num_heads && *out.num_heads > 0 && *out.hidden_size % *out.num_heads != 0)
    throw ConfigError(
        fmt::format("model.weights: the weights' config.json has hidden_size = {} and num_attention_heads = {}; the "
                    "first must be a "
                    "multiple of the second",
                    *out.hidden_size, *out.num_heads));
  take(config, "patch_size", "patch_size", out.patch_size);
  take(config, "qkv_bias", "qkv_bias", out.qkv_bias);
  take_default(config, "layer_norm_eps", "layer_norm_eps", out.layer_norm_eps);
  take_default(config, "hidden_dropout_prob", "dropout", out.dropout);
  take_default(config, "attention_probs_dropout_prob", "attention_dropout", out.attention_dropout);
  take_default(config, "initializer_range", "initializer_range", out.initializer_range);
  take(config, "image_size", "image_size", out.weights_image_size);
  take(config, "num_channels", "channels", out.weights_channels);
  return true;
}

void Kind::resolve(void* options, const nn::InputSpec& inputs) const { vit::resolve(view(options), inputs); }

std::unique_ptr<nn::Model> Kind::make(const void* options) const { return std::make_unique<Vit>(view(options)); }

nlohmann::json Kind::to_hf(const void* options) const {
  const auto& o = view(options);
  nlohmann::json id2label = nlohmann::json::object(), label2id = nlohmann::json::object();
  for (std::int64_t i = 0; i < o.classes; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto name = index < o.class_names.size() ? o.class_names[index] : fmt::format("LABEL_{}", i);
    id2label[std::to_string(i)] = name;
    label2id[name] = i;
  }
  return {{"architectures", {"ViTForImageClassification"}},
          {"model_type", "vit"},
          {"hidden_size", *o.hidden_size},
          {"num_hidden_layers", *o.num_layers},
          {"num_attention_heads", *o.num_heads},
          {"intermediate_size", *o.intermediate_size},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", *o.dropout},
          {"attention_probs_dropout_prob", *o.attention_dropout},
          {"initializer_range", *o.initializer_range},
          {"layer_norm_eps", *o.layer_norm_eps},
          {"image_size", o.image_size},
          {"patch_size", *o.patch_size},
          {"num_channels", o.channels},
          {"qkv_bias", *o.qkv_bias},
          {"id2label", std::move(id2label)},
          {"label2id", std::move(label2id)}};
}

}  // namespace trireme::models::vit
