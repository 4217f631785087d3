#include "models/bert/options.h"

#include "core/base/error.h"
#include "models/parts.h"

namespace trireme::models::bert {
namespace {

struct Size {
  const char* name;
  std::int64_t hidden_size, num_layers, num_heads, intermediate_size;
};
constexpr Size kSizes[] = {{"tiny", 128, 2, 2, 512},
                           {"mini", 256, 4, 4, 1024},
                           {"small", 512, 4, 8, 2048},
                           {"base", 768, 12, 12, 3072},
                           {"large", 1024, 24, 16, 4096}};

void fill_sizes(Options& o) {
  for (const auto& size : kSizes) {
    if (o.size.value_or("base") != size.name) continue;
    fill(o.hidden_size, size.hidden_size);
    fill(o.num_layers, size.num_layers);
    fill(o.num_heads, size.num_heads);
    fill(o.intermediate_size, size.intermediate_size);
  }
  o.size.reset();
}

/// The head that suits the data's targets. `classes` is 0 for language modelling.
Head head_for(const nn::DataSpec& data) {
  if (data.classes == 0) return Head::masked_lm;
  const auto* labels = data.target(nn::kLabels);
  const bool per_sample = labels == nullptr || labels->shape.empty() || labels->shape == std::vector{data.classes};
  return per_sample ? Head::sequence : Head::token;
}

}  // namespace

const Fields<Options>& fields() {
  using O = Options;
  static const auto table =
      Fields<O>("model", "BERT: an encoder of text, with a head for masked tokens or for classes.")
          .with("name", "bert")
          .add("size", &O::size,
               "Preset of hidden_size/num_layers/num_heads/intermediate_size: tiny 128/2/2/512, mini 256/4/4/1024, "
               "small 512/4/8/2048, base 768/12/12/3072, large 1024/24/16/4096. Each can be set to override the "
               "preset. Unset: the sizes of the loaded weights, else base.",
               {.choices = {"tiny", "mini", "small", "base", "large"}})
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.", {.min = 1, .max = 1048576})
          .add("num_layers", &O::num_layers, "Number of encoder layers.", {.min = 1, .max = 10000})
          .add("num_heads", &O::num_heads, "Number of attention heads; must divide hidden_size.",
               {.min = 1, .max = 1048576})
          .add("intermediate_size", &O::intermediate_size, "Hidden size of the MLP.", {.min = 1, .max = 1e12})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's "
               "tokenizer, else 30522.",
               {.min = 1, .max = 1e9})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else 512.", {.min = 1, .max = 1e9})
          .add("type_vocab_size", &O::type_vocab_size,
               "Number of token types, such as first and second sentence. Unset: that of the loaded weights, else 2.",
               {.min = 1, .max = 1e6})
          .add("hidden_act", &O::hidden_act, "Activation of the MLP. Unset: that of the loaded weights, else gelu.",
               {.choices = {"gelu", "gelu_new", "relu", "silu"}})
          .add("dropout", &O::dropout,
               "Dropout probability of hidden values. Unset: that of the loaded weights, else 0.1.",
               {.min = 0, .below = 1})
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0.1"), {.min = 0, .below = 1})
          .add("classifier_dropout", &O::classifier_dropout,
               "Dropout probability before the head for classes. Unset: that of the loaded weights, else dropout.",
               {.min = 0, .below = 1})
          .add("layer_norm_eps", &O::layer_norm_eps,
               "Added to the variance in each layer norm. Unset: that of the loaded weights, else 1e-12.", {.above = 0})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights. Unset: that of the loaded weights, else 0.02.",
               {.min = 0});
  return table;
}

void resolve(Options& o, const nn::DataSpec& data) {
  fill_sizes(o);
  fill_vocabulary(o.vocab_size, data, 30522);
  fill<std::int64_t>(o.max_positions, 512);
  fill<std::int64_t>(o.type_vocab_size, 2);
  fill<std::string>(o.hidden_act, "gelu");
  fill(o.dropout, 0.1);
  fill(o.attention_dropout, 0.1);
  fill(o.layer_norm_eps, 1e-12);
  fill(o.initializer_range, 0.02);
  fill<std::int64_t>(o.padding_id, data.tokens ? data.tokens->padding.value_or(-1) : 0);
  o.head = head_for(data);
  if (o.head == Head::masked_lm) {
    if (o.classifier_dropout)
      throw ConfigError(
          "model.classifier_dropout: has no effect on masked tokens, which have no head for classes; remove it");
  } else {
    fill(o.classifier_dropout, o.weights_classifier_dropout.value_or(*o.dropout));
  }
  o.classes = data.classes;
  o.class_names = data.class_names;
  check_token_ids(data, "bert", *o.max_positions);
  if (*o.hidden_size % *o.num_heads != 0)
    throw ConfigError(
        fmt::format("model.hidden_size: {} is not a multiple of model.num_heads = {}", *o.hidden_size, *o.num_heads));
}

}  // namespace trireme::models::bert
