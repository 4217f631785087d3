#include "models/bert/kind.h"

#include "models/bert/bert.h"

namespace trireme::models::bert {
namespace {

const char* architecture_of(Head head) {
  return head == Head::masked_lm  ? "BertForMaskedLM"
         : head == Head::sequence ? "BertForSequenceClassification"
                                  : "BertForTokenClassification";
}

}  // namespace

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
  return data.classes > 0 ? "classification" : "masked_lm";
}

nn::Policy Kind::policy(const void* options) const { return bert::policy(static_cast<const Options*>(options)->head); }

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<Bert>(options); }

}  // namespace trireme::models::bert
