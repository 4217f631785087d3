#include "models/gpt2/kind.h"

#include "models/gpt2/gpt2.h"

namespace trireme::models::gpt2 {

const nn::HfKeys& Kind::hf_keys() const {
  static const nn::HfKeys keys{.fixed = {{"scale_attn_weights", true},
                                         {"scale_attn_by_inverse_layer_idx", false},
                                         {"reorder_and_upcast_attn", false},
                                         {"add_cross_attention", false},
                                         {"tie_word_embeddings", true}},
                               // Of its model for multiple choice.
                               .no_effect = {"summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                                             "summary_type", "summary_use_proj"},
                               .written = {{"architectures", {"GPT2LMHeadModel"}}, {"tie_word_embeddings", true}},
                               .aliases = {{"hidden_size", "n_embd"},
                                           {"max_position_embeddings", "n_positions"},
                                           {"num_attention_heads", "n_head"},
                                           {"num_hidden_layers", "n_layer"}}};
  return keys;
}

/// null stands for 4 * n_embd.
void Kind::read_from(Options& o, const nn::HfConfig& config) const {
  if (config.value("n_inner").is_null())
    config.with({{"n_inner", 4 * *o.hidden_size}}).take(*fields().find("intermediate_size"), &o);
}

void Kind::write_to(const Options& o, nlohmann::json& config) const {
  if (*o.intermediate_size == 4 * *o.hidden_size) config["n_inner"] = nullptr;
}

nn::Policy Kind::policy(const void* /*options*/) const { return gpt2::policy(); }

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Gpt2>(options); }

}  // namespace trireme::models::gpt2
