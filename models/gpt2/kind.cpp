#include "models/gpt2/kind.h"

#include <nlohmann/json.hpp>

#include "models/gpt2/gpt2.h"
#include "models/hf_config.h"

namespace trireme::models::gpt2 {
namespace {

/// The values that a config.json implies for missing keys.
nlohmann::json implied_values() {
  return {{"n_embd", 768},
          {"n_layer", 12},
          {"n_head", 12},
          {"n_inner", nullptr},
          {"vocab_size", 50257},
          {"n_positions", 1024},
          {"resid_pdrop", 0.1},
          {"embd_pdrop", 0.1},
          {"attn_pdrop", 0.1},
          {"bos_token_id", 50256},
          {"eos_token_id", 50256},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"initializer_range", 0.02}};
}

/// A token's id in `config`; -1 where it is null, or a list, which only generation reads.
std::int64_t token_id(const nlohmann::json& config, const char* key) {
  const auto& id = config.at(key);
  return id.is_number_integer() ? id.get<std::int64_t>() : -1;
}

nlohmann::json stored_id(std::int64_t id) { return id < 0 ? nlohmann::json() : nlohmann::json(id); }

}  // namespace

bool Kind::from_hf(void* options, const nlohmann::json& values, const std::string& file) const {
  if (!values.is_object() || values.value("model_type", nlohmann::json()) != "gpt2") return false;
  auto complete = implied_values();
  complete.update(values);
  auto& o = *static_cast<Options*>(options);
  o.first_token_id = token_id(complete, "bos_token_id");
  o.last_token_id = token_id(complete, "eos_token_id");
  const bool default_inner = complete["n_inner"].is_null();
  const HfConfig config(std::move(complete), file);
  config.check_only("scale_attn_weights", true);
  config.check_only("tie_word_embeddings", true);
  for (const auto* changed : {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"})
    config.check_only(changed, false);
  config.take("n_embd", "hidden_size", o.hidden_size);
  config.take("n_layer", "num_layers", o.num_layers);
  config.take("n_head", "num_heads", o.num_heads);
  if (default_inner)
    HfConfig({{"n_inner", 4 * *o.hidden_size}}, file).take("n_inner", "intermediate_size", o.intermediate_size);
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
          {"bos_token_id", stored_id(*o.first_token_id)},
          {"eos_token_id", stored_id(*o.last_token_id)},
          {"tie_word_embeddings", true}};
}

nn::Policy Kind::policy(const void* /*options*/) const { return gpt2::policy(); }

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Gpt2>(options); }

}  // namespace trireme::models::gpt2
