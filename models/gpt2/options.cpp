#include "models/gpt2/options.h"

#include "core/base/error.h"
#include "models/parts.h"

namespace trireme::models::gpt2 {
namespace {

struct Size {
  const char* name;
  std::int64_t hidden_size, num_layers, num_heads;
};
constexpr Size kSizes[] = {{"tiny", 128, 2, 2},
                           {"small", 768, 12, 12},
                           {"medium", 1024, 24, 16},
                           {"large", 1280, 36, 20},
                           {"xl", 1600, 48, 25}};

void fill_sizes(Options& o) {
  for (const auto& size : kSizes) {
    if (o.size.value_or("small") != size.name) continue;
    fill(o.hidden_size, size.hidden_size);
    fill(o.num_layers, size.num_layers);
    fill(o.num_heads, size.num_heads);
  }
  o.size.reset();
  fill(o.intermediate_size, 4 * *o.hidden_size);
}

}  // namespace

const Fields<Options>& fields() {
  using O = Options;
  static const auto table =
      Fields<O>("model", "GPT-2: a decoder of text with learned positions and a tied head.")
          .with("name", "gpt2")
          .add("size", &O::size,
               "Preset of hidden_size/num_layers/num_heads: tiny 128/2/2, small 768/12/12 (124 million parameters), "
               "medium 1024/24/16, large 1280/36/20, xl 1600/48/25 (1.5 billion). Each can be set to override the "
               "preset. Unset: the sizes of the loaded weights, else small.",
               {.choices = {"tiny", "small", "medium", "large", "xl"}})
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.", {.min = 1, .max = 1048576})
          .add("num_layers", &O::num_layers, "Number of decoder layers.", {.min = 1, .max = 10000})
          .add("num_heads", &O::num_heads, "Number of attention heads; must divide hidden_size.",
               {.min = 1, .max = 1048576})
          .add("intermediate_size", &O::intermediate_size,
               "Hidden size of the MLP. Unset: that of the loaded weights, else 4 * hidden_size.",
               {.min = 1, .max = 1e12})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's "
               "tokenizer, else 50257.",
               {.min = 1, .max = 1e9})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else 1024.", {.min = 1, .max = 1e9})
          .add("hidden_act", &O::hidden_act, "Activation of the MLP. Unset: that of the loaded weights, else gelu_new.",
               {.choices = {"gelu_new", "gelu", "relu", "silu"}})
          .add("dropout", &O::dropout,
               "Dropout probability of the outputs of attention and MLP. Unset: that of the loaded weights, else 0.1.",
               {.min = 0, .below = 1})
          .add("embedding_dropout", &O::embedding_dropout,
               "Dropout probability of the embeddings. Unset: that of the loaded weights, else 0.1.",
               {.min = 0, .below = 1})
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0.1"), {.min = 0, .below = 1})
          .add("layer_norm_eps", &O::layer_norm_eps,
               "Added to the variance in each layer norm. Unset: that of the loaded weights, else 1e-5.", {.above = 0})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights; that of the layers before a residual sum is divided "
               "by sqrt(2 * num_layers). Unset: that of the loaded weights, else 0.02.",
               {.min = 0});
  return table;
}

void resolve(Options& o, const nn::DataSpec& data) {
  fill_sizes(o);
  fill_vocabulary(o.vocab_size, data, 50257);
  fill<std::int64_t>(o.max_positions, 1024);
  fill<std::string>(o.hidden_act, "gelu_new");
  for (auto* probability : {&o.dropout, &o.embedding_dropout, &o.attention_dropout}) fill(*probability, 0.1);
  fill(o.layer_norm_eps, 1e-5);
  fill(o.initializer_range, 0.02);
  check_token_ids(data, "gpt2", *o.max_positions);
  if (data.classes != 0)
    throw ConfigError(
        "model.name: \"gpt2\" has scores of the next token, but the data have a class for each sample; choose "
        "model.name = \"bert\", or data of running text (data.name = \"text\")");
  if (*o.hidden_size % *o.num_heads != 0)
    throw ConfigError(
        fmt::format("model.hidden_size: {} is not a multiple of model.num_heads = {}", *o.hidden_size, *o.num_heads));
}

}  // namespace trireme::models::gpt2
