#include "models/gpt2/kind.h"

#include "models/decoder.h"
#include "models/parts.h"

namespace trireme::models::gpt2 {

const Fields<Options>& fields() {
  using O = Options;
  static const auto table =
      Fields<O>("model", "GPT-2: a decoder of text with learned positions and a tied head.")
          .with("name", "gpt2")
          .add_presets(&O::size, " small has 124 million parameters, xl 1.5 billion.",
                       {.key = "size",
                        .keys = {"hidden_size", "num_layers", "num_heads"},
                        .names = {{"tiny", {128, 2, 2}},
                                  {"small", {768, 12, 12}},
                                  {"medium", {1024, 24, 16}},
                                  {"large", {1280, 36, 20}},
                                  {"xl", {1600, 48, 25}}},
                        .fallback = "small"})
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.",
               {.min = 1, .max = 1048576, .stored = "n_embd", .implied = 768})
          .add("num_layers", &O::num_layers, "Number of decoder layers.",
               {.min = 1, .max = 10000, .stored = "n_layer", .implied = 12})
          .add("num_heads", &O::num_heads, "Number of attention heads; must divide hidden_size.",
               {.min = 1, .max = 1048576, .stored = "n_head", .implied = 12})
          .add("intermediate_size", &O::intermediate_size,
               "Hidden size of the MLP. Unset: that of the loaded weights, else 4 * hidden_size.",
               {.min = 1, .max = 1e12, .stored = "n_inner"})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's "
               "tokenizer, else 50257.",
               {.min = 1, .max = 1e9, .implied = 50257})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else 1024.",
               {.min = 1, .max = 1e9, .stored = "n_positions", .implied = 1024})
          .add("hidden_act", &O::hidden_act, "Activation of the MLP. Unset: that of the loaded weights, else gelu_new.",
               {.choices = hidden_acts(), .stored = "activation_function", .implied = "gelu_new"})
          .add("dropout", &O::dropout,
               "Dropout probability of the outputs of attention and MLP. Unset: that of the loaded weights, else 0.1.",
               {.min = 0, .below = 1, .stored = "resid_pdrop", .implied = 0.1, .overrides = true})
          .add("embedding_dropout", &O::embedding_dropout,
               "Dropout probability of the embeddings. Unset: that of the loaded weights, else 0.1.",
               {.min = 0, .below = 1, .stored = "embd_pdrop", .implied = 0.1, .overrides = true})
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0.1"),
               {.min = 0, .below = 1, .stored = "attn_pdrop", .implied = 0.1, .overrides = true})
          .add("layer_norm_eps", &O::layer_norm_eps,
               "Added to the variance in each layer norm. Unset: that of the loaded weights, else 1e-5.",
               {.above = 0, .stored = "layer_norm_epsilon", .implied = 1e-5, .overrides = true})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights; that of the layers before a residual sum is divided "
               "by sqrt(2 * num_layers). Unset: that of the loaded weights, else 0.02.",
               {.min = 0, .implied = 0.02, .overrides = true});
  return table;
}

void Kind::resolve_for(Options& o, const nn::DataSpec& data) const {
  fill_vocabulary(o.vocab_size, data);
  nn::fill_unset(fields(), &o);
  fill(o.intermediate_size, 4 * *o.hidden_size);
  check_running_text(data, "gpt2", *o.max_positions);
  check_heads(*o.hidden_size, *o.num_heads);
}

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

}  // namespace trireme::models::gpt2
