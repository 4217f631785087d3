#include "models/llama/options.h"

#include "core/base/error.h"
#include "models/parts.h"

namespace trireme::models::llama {
namespace {

struct Size {
  const char* name;
  std::int64_t hidden_size, num_layers, num_heads, num_key_value_heads, head_size, intermediate_size;
  std::int64_t vocab_size, max_positions;
  double rope_theta;
};
constexpr Size kSizes[] = {{"tiny", 288, 6, 6, 6, 48, 768, 32000, 2048, 1e4},
                           {"1b", 2048, 16, 32, 8, 64, 8192, 128256, 8192, 5e5},
                           {"3b", 3072, 28, 24, 8, 128, 8192, 128256, 8192, 5e5},
                           {"8b", 4096, 32, 32, 8, 128, 14336, 128256, 8192, 5e5}};
constexpr const char* kDefaultSize = "tiny";

void fill_sizes(Options& o, const nn::DataSpec& data) {
  const bool heads_given = o.num_heads.has_value(), width_given = o.hidden_size.has_value();
  for (const auto& size : kSizes) {
    if (o.size.value_or(kDefaultSize) != size.name) continue;
    fill(o.hidden_size, size.hidden_size);
    fill(o.num_layers, size.num_layers);
    fill(o.num_heads, size.num_heads);
    fill(o.intermediate_size, size.intermediate_size);
    // These follow from heads and width that the user has chosen.
    if (!heads_given) fill(o.num_key_value_heads, size.num_key_value_heads);
    if (!heads_given && !width_given) fill(o.head_size, size.head_size);
    fill_vocabulary(o.vocab_size, data, size.vocab_size);
    fill(o.max_positions, size.max_positions);
    fill(o.rope_theta, size.rope_theta);
  }
  o.size.reset();
  fill(o.num_key_value_heads, *o.num_heads);
}

}  // namespace

const Fields<Options>& fields() {
  using O = Options;
  static const auto table =
      Fields<O>("model", "Llama: a decoder of text with rotary positions, shared key-value heads and a gated MLP.")
          .with("name", "llama")
          .add("size", &O::size,
               "Preset of hidden_size/num_layers/num_heads/num_key_value_heads/intermediate_size: tiny "
               "288/6/6/6/768, 1b 2048/16/32/8/8192, 3b 3072/28/24/8/8192, 8b 4096/32/32/8/14336; the last three with "
               "the "
               "vocabulary, the positions and the rotary base of Llama 3. Each can be set to override the preset. "
               "Unset: "
               "the sizes of the loaded weights, else tiny.",
               {.choices = {"tiny", "1b", "3b", "8b"}})
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.", {.min = 1, .max = 1048576})
          .add("num_layers", &O::num_layers, "Number of decoder layers.", {.min = 1, .max = 10000})
          .add("num_heads", &O::num_heads, "Number of attention heads.", {.min = 1, .max = 1048576})
          .add("num_key_value_heads", &O::num_key_value_heads,
               "Number of heads of keys and values, which heads share; must divide num_heads. Unset: that of the "
               "loaded weights or of the size, else num_heads.",
               {.min = 1, .max = 1048576})
          .add("head_size", &O::head_size,
               "Size of a head; even. Unset: that of the loaded weights or of the size, else hidden_size / num_heads.",
               {.min = 2, .max = 1048576})
          .add("intermediate_size", &O::intermediate_size, "Hidden size of the MLP.", {.min = 1, .max = 1e12})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's "
               "tokenizer, else of the size: 32000 for tiny, else 128256.",
               {.min = 1, .max = 1e9})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else of the size: 2048 for tiny, "
               "else 8192.",
               {.min = 1, .max = 1e9})
          .add("hidden_act", &O::hidden_act,
               "Activation of the MLP's gate. Unset: that of the loaded weights, else silu.",
               {.choices = {"silu", "gelu", "gelu_new", "relu"}})
          .add("tied", &O::tied,
               "Whether the head's weights are the embedding's. Unset: as in the loaded weights' config.json, else "
               "false.")
          .add("attention_bias", &O::attention_bias,
               "Whether the attention's projections have biases. Unset: as in the loaded weights, else false.")
          .add("mlp_bias", &O::mlp_bias,
               "Whether the MLP's layers have biases. Unset: as in the loaded weights, else false.")
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0"), {.min = 0, .below = 1})
          .add("rms_norm_eps", &O::rms_norm_eps,
               "Added to the mean square in each norm. Unset: that of the loaded weights, else 1e-6.", {.above = 0})
          .add("rope_theta", &O::rope_theta,
               "Base of the rotary angles. Unset: that of the loaded weights, else of the size: 10000 for tiny, else "
               "500000.",
               {.above = 0})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights. Unset: that of the loaded weights, else 0.02.",
               {.min = 0});
  return table;
}

void resolve(Options& o, const nn::DataSpec& data) {
  fill_sizes(o, data);
  if (!o.head_size) {
    if (*o.hidden_size % *o.num_heads != 0)
      throw ConfigError(
          fmt::format("model.hidden_size: {} is not a multiple of model.num_heads = {}; change one, or "
                      "set model.head_size",
                      *o.hidden_size, *o.num_heads));
    o.head_size = *o.hidden_size / *o.num_heads;
  }
  fill<std::string>(o.hidden_act, "silu");
  for (auto* flag : {&o.tied, &o.attention_bias, &o.mlp_bias}) fill(*flag, false);
  fill(o.attention_dropout, 0.0);
  fill(o.rms_norm_eps, 1e-6);
  fill(o.initializer_range, 0.02);
  if (*o.num_heads % *o.num_key_value_heads != 0)
    throw ConfigError(fmt::format("model.num_key_value_heads: {} does not divide model.num_heads = {}",
                                  *o.num_key_value_heads, *o.num_heads));
  check_token_ids(data, "llama", *o.max_positions);
  if (data.classes != 0)
    throw ConfigError(
        "model.name: \"llama\" has scores of the next token, but the data have a class for each sample; choose "
        "model.name = \"bert\", or data of running text (data.name = \"text\")");
}

}  // namespace trireme::models::llama
