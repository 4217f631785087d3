#include "models/llama/kind.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/llama/llama.h"

namespace trireme::models::llama {
namespace {

/// The base of the angles is in rope_parameters, or in rope_theta in files of older versions, which have the scaling in
/// rope_scaling. @throws ConfigError for scaled angles
nlohmann::json with_rotary(nlohmann::json values, const std::string& file) {
  for (const auto* key : {"rope_parameters", "rope_scaling"}) {
    const auto found = values.find(key);
    if (found == values.end() || found->is_null()) continue;
    // Files of other models have an object for each kind of attention.
    const auto is_nested = [](const nlohmann::json& inner) { return inner.is_object(); };
    if (!found->is_object() || std::any_of(found->begin(), found->end(), is_nested))
      HfConfig(fields(), values, file)
          .refuse(fmt::format("has {} = {}; it must be one object for all layers", key, found->dump()));
    const auto type = found->value("rope_type", found->value("type", nlohmann::json("default")));
    if (type != "default")
      throw ConfigError(
          fmt::format("model.weights: {} has rotary positions of the type {}; only \"default\" is "
                      "supported",
                      file, type.dump()));
    for (const auto* inner : {"rope_theta", "partial_rotary_factor"})
      if (found->contains(inner)) values[inner] = (*found)[inner];
  }
  return values;
}

}  // namespace

const HfKeys& hf_keys() {
  static const HfKeys keys{.used = {{"hidden_size", 4096},
                                    {"num_hidden_layers", 32},
                                    {"num_attention_heads", 32},
                                    {"num_key_value_heads", nullptr},
                                    {"head_dim", nullptr},
                                    {"intermediate_size", 11008},
                                    {"vocab_size", 32000},
                                    {"max_position_embeddings", 2048},
                                    {"hidden_act", "silu"},
                                    {"rms_norm_eps", 1e-6},
                                    {"rope_theta", 10000.0},
                                    {"rope_parameters", nullptr},
                                    {"rope_scaling", nullptr},
                                    {"attention_dropout", 0.0},
                                    {"initializer_range", 0.02},
                                    {"tie_word_embeddings", false},
                                    {"attention_bias", false},
                                    {"mlp_bias", false},
                                    {"pad_token_id", nullptr}},
                           .fixed = {{"partial_rotary_factor", 1.0}},
                           // It only splits the matrix products of versions before transformers 5.
                           .no_effect = {"pretraining_tp"}};
  return keys;
}

bool Kind::from_hf(void* options, const nlohmann::json& values, const std::string& file) const {
  if (!values.is_object() || values.value("model_type", nlohmann::json()) != "llama") return false;
  const HfConfig config(fields(), hf_keys(), with_rotary(values, file), file);
  auto& o = *static_cast<Options*>(options);
  config.take("hidden_size", "hidden_size", o.hidden_size);
  config.take("num_hidden_layers", "num_layers", o.num_layers);
  config.take("num_attention_heads", "num_heads", o.num_heads);
  config.take("num_key_value_heads", "num_key_value_heads", o.num_key_value_heads);
  config.take("head_dim", "head_size", o.head_size);
  config.take("intermediate_size", "intermediate_size", o.intermediate_size);
  config.take("vocab_size", "vocab_size", o.vocab_size);
  config.take("max_position_embeddings", "max_positions", o.max_positions);
  config.take("hidden_act", "hidden_act", o.hidden_act);
  config.take_default("tie_word_embeddings", "tied", o.tied);  // a file may hold another head all the same
  config.take("attention_bias", "attention_bias", o.attention_bias);
  config.take("mlp_bias", "mlp_bias", o.mlp_bias);
  config.take("rope_theta", "rope_theta", o.rope_theta);
  config.take_default("rms_norm_eps", "rms_norm_eps", o.rms_norm_eps);
  config.take_default("attention_dropout", "attention_dropout", o.attention_dropout);
  config.take_default("initializer_range", "initializer_range", o.initializer_range);
  o.padding_id = padding_id(config, *o.vocab_size);
  return true;
}

nlohmann::json Kind::to_hf(const void* options) const {
  const auto& o = *static_cast<const Options*>(options);
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", *o.hidden_size},
          {"num_hidden_layers", *o.num_layers},
          {"num_attention_heads", *o.num_heads},
          {"num_key_value_heads", *o.num_key_value_heads},
          {"head_dim", *o.head_size},
          {"intermediate_size", *o.intermediate_size},
          {"vocab_size", *o.vocab_size},
          {"max_position_embeddings", *o.max_positions},
          {"hidden_act", *o.hidden_act},
          {"tie_word_embeddings", *o.tied},
          {"attention_bias", *o.attention_bias},
          {"mlp_bias", *o.mlp_bias},
          {"attention_dropout", *o.attention_dropout},
          {"rms_norm_eps", *o.rms_norm_eps},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", *o.rope_theta}}},
          {"initializer_range", *o.initializer_range},
          {"pad_token_id", stored_id(o.padding_id)}};
}

nn::Policy Kind::policy(const void* options) const {
  return llama::policy(*static_cast<const Options*>(options)->tied);
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Llama>(options); }

}  // namespace trireme::models::llama
