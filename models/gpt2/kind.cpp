#include "models/gpt2/kind.h"

#include <nlohmann/json.hpp>

#include "models/gpt2/gpt2.h"
#include "models/hf_config.h"

namespace trireme::models::gpt2 {
namespace {

/// Names that transformers' GPT2Config takes for others.
constexpr std::pair<const char*, const char*> kAliases[] = {{"hidden_size", "n_embd"},
                                                            {"max_position_embeddings", "n_positions"},
                                                            {"num_attention_heads", "n_head"},
                                                            {"num_hidden_layers", "n_layer"}};

/// @throws ConfigError where a value and the one under the other name differ
nlohmann::json without_aliases(nlohmann::json values, const std::string& file) {
  for (const auto& [alias, key] : kAliases) {
    if (!values.contains(alias)) continue;
    const auto value = values.at(alias);
    if (values.value(key, value) != value)
      HfConfig(fields(), values, file)
          .refuse(fmt::format("has {} = {} and {} = {}, which are names of one number; remove one", key,
                              values.at(key).dump(), alias, value.dump()));
    values[key] = value;
  }
  return values;
}

}  // namespace

const HfKeys& hf_keys() {
  static const HfKeys keys{.used = {{"n_embd", 768},
                                    {"n_layer", 12},
                                    {"n_head", 12},
                                    {"n_inner", nullptr},
                                    {"vocab_size", 50257},
                                    {"n_positions", 1024},
                                    {"resid_pdrop", 0.1},
                                    {"embd_pdrop", 0.1},
                                    {"attn_pdrop", 0.1},
                                    {"activation_function", "gelu_new"},
                                    {"layer_norm_epsilon", 1e-5},
                                    {"initializer_range", 0.02}},
                           .fixed = {{"scale_attn_weights", true},
                                     {"scale_attn_by_inverse_layer_idx", false},
                                     {"reorder_and_upcast_attn", false},
                                     {"add_cross_attention", false},
                                     {"tie_word_embeddings", true}},
                           // Of its model for multiple choice.
                           .no_effect = {"summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                                         "summary_type", "summary_use_proj"}};
  return keys;
}

bool Kind::from_hf(void* options, const nlohmann::json& values, const std::string& file) const {
  if (!values.is_object() || values.value("model_type", nlohmann::json()) != "gpt2") return false;
  const HfConfig config(fields(), hf_keys(), without_aliases(values, file), file);
  auto& o = *static_cast<Options*>(options);
  config.take("n_embd", "hidden_size", o.hidden_size);
  config.take("n_layer", "num_layers", o.num_layers);
  config.take("n_head", "num_heads", o.num_heads);
  if (config.value("n_inner").is_null())
    HfConfig(fields(), {{"n_inner", 4 * *o.hidden_size}}, file)
        .take("n_inner", "intermediate_size", o.intermediate_size);
  else
    config.take("n_inner", "intermediate_size", o.intermediate_size);
  config.take("vocab_size", "vocab_size", o.vocab_size);
  config.take("n_positions", "max_positions", o.max_positions);
  config.take("activation_function", "hidden_act", o.hidden_act);
  config.take_default("resid_pdrop", "dropout", o.dropout);
  config.take_default("embd_pdrop", "embedding_dropout", o.embedding_dropout);
  config.take_default("attn_pdrop", "attention_dropout", o.attention_dropout);
  config.take_default("layer_norm_epsilon", "layer_norm_eps", o.layer_norm_eps);
  config.take_default("initializer_range", "initializer_range", o.initializer_range);
  return true;
}

nlohmann::json Kind::to_hf(const void* options) const {
  const auto& o = *static_cast<const Options*>(options);
  const bool default_inner = *o.intermediate_size == 4 * *o.hidden_size;
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", *o.hidden_size},
          {"n_layer", *o.num_layers},
          {"n_head", *o.num_heads},
          {"n_inner", default_inner ? nlohmann::json() : nlohmann::json(*o.intermediate_size)},
          {"vocab_size", *o.vocab_size},
          {"n_positions", *o.max_positions},
          {"activation_function", *o.hidden_act},
          {"resid_pdrop", *o.dropout},
          {"embd_pdrop", *o.embedding_dropout},
          {"attn_pdrop", *o.attention_dropout},
          {"layer_norm_epsilon", *o.layer_norm_eps},
          {"initializer_range", *o.initializer_range},
          {"tie_word_embeddings", true}};
}

nn::Policy Kind::policy(const void* /*options*/) const { return gpt2::policy(); }

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Gpt2>(options); }

}  // namespace trireme::models::gpt2
