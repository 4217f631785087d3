// Options of BERT, as in [model] and in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/data_spec.h"

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

/// @throws ConfigError
void resolve(Options& options, const nn::DataSpec& data);

}  // namespace trireme::models::bert
