#include "models/bert/kind.h"

#include <nlohmann/json.hpp>

#include "models/bert/bert.h"
#include "models/hf_config.h"

namespace trireme::models::bert {
namespace {

const char* architecture_of(Head head) {
  return head == Head::masked_lm  ? "BertForMaskedLM"
         : head == Head::sequence ? "BertForSequenceClassification"
                                  : "BertForTokenClassification";
}

}  // namespace

const HfKeys& hf_keys() {
  static const HfKeys keys{.used = {{"hidden_size", 768},
                                    {"num_hidden_layers", 12},
                                    {"num_attention_heads", 12},
                                    {"intermediate_size", 3072},
                                    {"vocab_size", 30522},
                                    {"max_position_embeddings", 512},
                                    {"type_vocab_size", 2},
                                    {"hidden_act", "gelu"},
                                    {"layer_norm_eps", 1e-12},
                                    {"hidden_dropout_prob", 0.1},
                                    {"attention_probs_dropout_prob", 0.1},
                                    {"classifier_dropout", nullptr},
                                    {"initializer_range", 0.02},
                                    {"pad_token_id", 0}},
                           .fixed = {{"is_decoder", false},
                                     {"add_cross_attention", false},
                                     {"position_embedding_type", "absolute"},
                                     {"tie_word_embeddings", true}},
                           .no_effect = {}};
  return keys;
}

bool Kind::from_hf(void* options, const nlohmann::json& values, const std::string& file) const {
  if (!values.is_object() || values.value("model_type", nlohmann::json()) != "bert") return false;
  const HfConfig config(fields(), hf_keys(), values, file);
  auto& o = *static_cast<Options*>(options);
  config.take("hidden_size", "hidden_size", o.hidden_size);
  config.take("num_hidden_layers", "num_layers", o.num_layers);
  config.take("num_attention_heads", "num_heads", o.num_heads);
  config.take("intermediate_size", "intermediate_size", o.intermediate_size);
  config.take("vocab_size", "vocab_size", o.vocab_size);
  config.take("max_position_embeddings", "max_positions", o.max_positions);
  config.take("type_vocab_size", "type_vocab_size", o.type_vocab_size);
  config.take("hidden_act", "hidden_act", o.hidden_act);
  config.take_default("layer_norm_eps", "layer_norm_eps", o.layer_norm_eps);
  config.take_default("hidden_dropout_prob", "dropout", o.dropout);
  config.take_default("attention_probs_dropout_prob", "attention_dropout", o.attention_dropout);
  config.take_default("initializer_range", "initializer_range", o.initializer_range);
  config.take("classifier_dropout", "classifier_dropout", o.weights_classifier_dropout);
  o.padding_id = padding_id(config, *o.vocab_size);
  return true;
}

nlohmann::json Kind::to_hf(const void* options) const {
  const auto& o = *static_cast<const Options*>(options);
  nlohmann::json config{{"architectures", {architecture_of(o.head)}},
                        {"model_type", "bert"},
                        {"hidden_size", *o.hidden_size},
                        {"num_hidden_layers", *o.num_layers},
                        {"num_attention_heads", *o.num_heads},
                        {"intermediate_size", *o.intermediate_size},
                        {"vocab_size", *o.vocab_size},
                        {"max_position_embeddings", *o.max_positions},
                        {"type_vocab_size", *o.type_vocab_size},
                        {"hidden_act", *o.hidden_act},
                        {"hidden_dropout_prob", *o.dropout},
                        {"attention_probs_dropout_prob", *o.attention_dropout},
                        {"initializer_range", *o.initializer_range},
                        {"layer_norm_eps", *o.layer_norm_eps},
                        {"pad_token_id", stored_id(*o.padding_id)},
                        {"tie_word_embeddings", true}};
  const auto& own = o.classifier_dropout ? o.classifier_dropout : o.weights_classifier_dropout;
  const bool follows = !own || (!o.weights_classifier_dropout && *own == *o.dropout);
  config["classifier_dropout"] = follows ? nlohmann::json() : nlohmann::json(*own);
  if (o.head != Head::masked_lm) add_labels(config, o.classes, o.class_names);
  return config;
}

std::string Kind::default_task(const nn::DataSpec& data) const {
  return data.classes > 0 ? "classification" : "masked_lm";
}

nn::Policy Kind::policy(const void* options) const { return bert::policy(static_cast<const Options*>(options)->head); }

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Bert>(options); }

}  // namespace trireme::models::bert
