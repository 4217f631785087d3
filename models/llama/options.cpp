#include "models/llama/options.h"

#include "core/base/error.h"
#include "core/nn/model_kind.h"
#include "models/decoder.h"
#include "models/parts.h"

namespace trireme::models::llama {

Fields<Options> fields_of(Variant variant) {
  using O = Options;
  variant.presets.key = "size";
  auto table =
      Fields<O>("model", variant.text)
          .with("name", variant.name)
          .add_presets(&O::size, variant.size_text, std::move(variant.presets))
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.", {.min = 1, .max = 1048576})
          .add("num_layers", &O::num_layers, "Number of decoder layers.",
               {.min = 1, .max = 10000, .stored = "num_hidden_layers"})
          .add("num_heads", &O::num_heads, "Number of attention heads.",
               {.min = 1, .max = 1048576, .stored = "num_attention_heads"})
          .add("num_key_value_heads", &O::num_key_value_heads,
               "Number of heads of keys and values, which heads share; must divide num_heads. Unset: that of the "
               "loaded weights or of the size, else num_heads.",
               {.min = 1, .max = 1048576})
          .add("head_size", &O::head_size,
               "Size of a head; even. Unset: that of the loaded weights or of the size, else hidden_size / num_heads.",
               {.min = 2, .max = 1048576, .stored = "head_dim"})
          .add("intermediate_size", &O::intermediate_size, "Hidden size of the MLP.", {.min = 1, .max = 1e12})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's tokenizer, else of the "
               "size.",
               {.min = 1, .max = 1e9})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else of the size.",
               {.min = 1, .max = 1e9, .stored = "max_position_embeddings", .overrides = true})
          .add("hidden_act", &O::hidden_act,
               "Activation of the MLP's gate. Unset: that of the loaded weights, else silu.",
               {.choices = {"silu", "gelu", "gelu_new", "relu"}, .implied = "silu"})
          .add("tied", &O::tied,
               "Whether the head's weights are the embedding's. Unset: as in the loaded weights' config.json, else of "
               "the size, else false.",
               {.stored = "tie_word_embeddings", .implied = false, .overrides = true})
          .add("attention_bias", &O::attention_bias,
               "Whether the attention's projections have biases. Unset: as in the loaded weights, else false.",
               {.implied = false})
          .add("mlp_bias", &O::mlp_bias,
               "Whether the MLP's layers have biases. Unset: as in the loaded weights, else false.", {.implied = false})
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0"),
               {.min = 0, .below = 1, .implied = 0.0, .overrides = true})
          .add("rms_norm_eps", &O::rms_norm_eps,
               "Added to the mean square in each norm. Unset: that of the loaded weights, else 1e-6.",
               {.above = 0, .implied = 1e-6, .overrides = true})
          .add("rope_theta", &O::rope_theta,
               "Base of the rotary angles. Unset: that of the loaded weights, else of the size.",
               {.above = 0, .implied = 1e4})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights. Unset: that of the loaded weights, else 0.02.",
               {.min = 0, .implied = 0.02, .overrides = true});
  for (auto& field : table.fields)
    for (const auto& [key, value] : variant.implied)
      if (field.key == key) field.rules.implied = value;
  return table;
}

const Fields<Options>& fields() {
  static const auto table = fields_of(
      {.name = "llama",
       .text = "Llama: a decoder of text with rotary positions, shared key-value heads and a gated MLP.",
       .size_text = " tiny has 32000 token ids, 2048 positions and the rotary base 10000; the others have 128256, 8192 "
                    "and 500000 as Llama 3.",
       .presets = {.keys = {"hidden_size", "num_layers", "num_heads", "num_key_value_heads", "head_size",
                            "intermediate_size"},
                   .further = {"vocab_size", "max_positions", "rope_theta"},
                   .names = {{"tiny", {288, 6, 6, 6, 48, 768, 32000, 2048, 1e4}},
                             {"1b", {2048, 16, 32, 8, 64, 8192, 128256, 8192, 5e5}},
                             {"3b", {3072, 28, 24, 8, 128, 8192, 128256, 8192, 5e5}},
                             {"8b", {4096, 32, 32, 8, 128, 14336, 128256, 8192, 5e5}}},
                   .fallback = "tiny"},
       .implied = {{"hidden_size", 4096},
                   {"num_layers", 32},
                   {"num_heads", 32},
                   {"intermediate_size", 11008},
                   {"vocab_size", 32000},
                   {"max_positions", 2048}}});
  return table;
}

void resolve_with(const Fields<Options>& fields, Options& o, const nn::DataSpec& data) {
  // Heads and width that are given decide over the number of shared heads and their size in the preset.
  const bool own_heads = (o.num_heads || o.hidden_size) && !o.head_size;
  if (o.num_heads) fill(o.num_key_value_heads, *o.num_heads);
  fill_vocabulary(o.vocab_size, data);
  nn::fill_unset(fields, &o);
  if (own_heads) {
    if (*o.hidden_size % *o.num_heads != 0)
      throw ConfigError(
          fmt::format("model.hidden_size: {} is not a multiple of model.num_heads = {}; change one, or "
                      "set model.head_size",
                      *o.hidden_size, *o.num_heads));
    o.head_size = *o.hidden_size / *o.num_heads;
  }
  if (*o.num_heads % *o.num_key_value_heads != 0)
    throw ConfigError(fmt::format("model.num_key_value_heads: {} does not divide model.num_heads = {}",
                                  *o.num_key_value_heads, *o.num_heads));
  o.longest = *o.max_positions;
  // The angles depend on the batch's longest sample or position: where these vary, so would the results with the way in
  // which samples are put together.
  if (const auto* ids = data.input("input_ids");
      o.rope.type == "dynamic" && ids != nullptr && !ids->varies() && data.input("position_ids") == nullptr)
    o.longest = static_cast<std::int64_t>(*o.rope.factor * static_cast<double>(*o.max_positions));
  check_running_text(data, fields.choice, o.longest);
}

}  // namespace trireme::models::llama
