// BERT (Devlin et al., 2018) with its heads for masked tokens, for samples and for tokens, equal to Hugging Face's
// models; parameters have the same names.
//
// Blocks: "bert.embeddings", "bert.encoder.layer.0", ..., "head". One tensor, hidden [B, N, H], passes between them.
// Inputs: input_ids int64 [B, N]. Side inputs, which the data may lack: attention_mask [B, N] (nonzero for tokens that
// count; all), document_ids [B, N] (a token attends to those of its own document; one), token_type_ids [B, N] (0),
// position_ids [B, N] (0, 1, ...).
// Outputs: [B, N, V] (masked_lm), [B, K] (sequence) or [B, N, K] (token). V token ids, K classes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/hf_config.h"
#include "core/nn/model_kind.h"

namespace trireme::models::bert {

/// What the model computes from the tokens' last hidden values.
enum class Head {
  masked_lm,  ///< scores of every token id for each token
  sequence,   ///< scores of the classes for each sample, from its first token
  token,      ///< scores of the classes for each token
};

/// Unset options come from the loaded weights, else from the preset `size`, else from the default. resolve() sets all
/// of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, intermediate_size;
  std::optional<std::int64_t> vocab_size, max_positions, type_vocab_size;
  std::optional<double> dropout, attention_dropout, layer_norm_eps, initializer_range;
  std::optional<double> classifier_dropout;  ///< stays unset with Head::masked_lm, which has none

  // Set from the data and the task; not keys of [model].
  Head head = Head::masked_lm;
  std::int64_t classes = 0;
  std::vector<std::string> class_names;
  std::optional<std::int64_t> padding_id;            ///< -1: there is no such token
  std::optional<double> weights_classifier_dropout;  ///< that of the loaded weights
};

const Fields<Options>& fields();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(bert::fields()) {}
  [[nodiscard]] const nn::HfKeys& hf_keys() const override;
  [[nodiscard]] nn::Policy policy(const void* options) const override;
  [[nodiscard]] std::string default_task(const nn::DataSpec& data) const override;
  [[nodiscard]] std::string head_prefix() const override { return "classifier."; }

 protected:
  void resolve_for(Options& options, const nn::DataSpec& data) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::bert
