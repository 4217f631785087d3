#include "models/bert/kind.h"

#include "core/base/error.h"
#include "models/parts.h"

namespace trireme::models::bert {
namespace {

/// The head that suits the data's targets. `classes` is 0 for language modelling.
Head head_for(const nn::DataSpec& data) {
  if (data.classes == 0) return Head::masked_lm;
  const auto* labels = data.target(nn::kLabels);
  const bool per_sample = labels == nullptr || labels->shape.empty() || labels->shape == std::vector{data.classes};
  return per_sample ? Head::sequence : Head::token;
}

const char* architecture_of(Head head) {
  return head == Head::masked_lm  ? "BertForMaskedLM"
         : head == Head::sequence ? "BertForSequenceClassification"
                                  : "BertForTokenClassification";
}

}  // namespace

const Fields<Options>& fields() {
  using O = Options;
  static const auto table =
      Fields<O>("model", "BERT: an encoder of text, with a head for masked tokens or for classes.")
          .with("name", "bert")
          .add_presets(&O::size, "",
                       {.key = "size",
                        .keys = {"hidden_size", "num_layers", "num_heads", "intermediate_size"},
                        .names = {{"tiny", {128, 2, 2, 512}},
                                  {"mini", {256, 4, 4, 1024}},
                                  {"small", {512, 4, 8, 2048}},
                                  {"base", {768, 12, 12, 3072}},
                                  {"large", {1024, 24, 16, 4096}}},
                        .fallback = "base"})
          .add("hidden_size", &O::hidden_size, "Size of a token's hidden vector.",
               {.min = 1, .max = 1048576, .implied = 768})
          .add("num_layers", &O::num_layers, "Number of encoder layers.",
               {.min = 1, .max = 10000, .stored = "num_hidden_layers", .implied = 12})
          .add("num_heads", &O::num_heads, "Number of attention heads; must divide hidden_size.",
               {.min = 1, .max = 1048576, .stored = "num_attention_heads", .implied = 12})
          .add("intermediate_size", &O::intermediate_size, "Hidden size of the MLP.",
               {.min = 1, .max = 1e12, .implied = 3072})
          .add("vocab_size", &O::vocab_size,
               "Number of token ids. Unset: that of the loaded weights, else of the data's "
               "tokenizer, else 30522.",
               {.min = 1, .max = 1e9, .implied = 30522})
          .add("max_positions", &O::max_positions,
               "The longest sample, in tokens. Unset: that of the loaded weights, else 512.",
               {.min = 1, .max = 1e9, .stored = "max_position_embeddings", .implied = 512})
          .add("type_vocab_size", &O::type_vocab_size,
               "Number of token types, such as first and second sentence. Unset: that of the loaded weights, else 2.",
               {.min = 1, .max = 1e6, .implied = 2})
          .add("hidden_act", &O::hidden_act, "Activation of the MLP. Unset: that of the loaded weights, else gelu.",
               {.choices = hidden_acts(), .implied = "gelu"})
          .add("dropout", &O::dropout,
               "Dropout probability of hidden values. Unset: that of the loaded weights, else 0.1.",
               {.min = 0, .below = 1, .stored = "hidden_dropout_prob", .implied = 0.1, .overrides = true})
          .add("attention_dropout", &O::attention_dropout, attention_dropout_text("0.1"),
               {.min = 0, .below = 1, .stored = "attention_probs_dropout_prob", .implied = 0.1, .overrides = true})
          .add("classifier_dropout", &O::classifier_dropout,
               "Dropout probability before the head for classes. Unset: that of the loaded weights, else dropout.",
               {.min = 0, .below = 1, .stored = ""})
          .add("layer_norm_eps", &O::layer_norm_eps,
               "Added to the variance in each layer norm. Unset: that of the loaded weights, else 1e-12.",
               {.above = 0, .implied = 1e-12, .overrides = true})
          .add("initializer_range", &O::initializer_range,
               "Standard deviation of newly initialized weights. Unset: that of the loaded weights, else 0.02.",
               {.min = 0, .implied = 0.02, .overrides = true});
  return table;
}

void Kind::resolve_for(Options& o, const nn::DataSpec& data) const {
  fill_vocabulary(o.vocab_size, data);
  nn::fill_unset(fields(), &o);
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
  check_heads(*o.hidden_size, *o.num_heads);
}

const nn::HfKeys& Kind::hf_keys() const {
  static const nn::HfKeys keys{.used = {{"classifier_dropout", nullptr}, {"pad_token_id", 0}},
                               .fixed = {{"is_decoder", false},
                                         {"add_cross_attention", false},
                                         {"position_embedding_type", "absolute"},
                                         {"tie_word_embeddings", true}},
                               .written = {{"tie_word_embeddings", true}}};
  return keys;
}

void Kind::read_from(Options& o, const nn::HfConfig& config) const {
  o.weights_classifier_dropout = config.read<double>("classifier_dropout", fields().find("classifier_dropout")->rules);
  o.padding_id = nn::padding_id(config, *o.vocab_size);
}

void Kind::write_to(const Options& o, nlohmann::json& config) const {
  config["architectures"] = {architecture_of(o.head)};
  config["pad_token_id"] = nn::stored_id(*o.padding_id);
  const auto& own = o.classifier_dropout ? o.classifier_dropout : o.weights_classifier_dropout;
  const bool follows = !own || (!o.weights_classifier_dropout && *own == *o.dropout);
  config["classifier_dropout"] = follows ? nlohmann::json() : nlohmann::json(*own);
  if (o.head != Head::masked_lm) nn::add_labels(config, o.classes, o.class_names);
}

std::string Kind::default_task(const nn::DataSpec& data) const {
  const auto task = task_of_labels(data);
  return task == "classification" && data.classes == 0 ? "masked_lm" : task;
}

}  // namespace trireme::models::bert
