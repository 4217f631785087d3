// Options of Llama and of the models that are built as it is, as in [model] and in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/data_spec.h"
#include "core/nn/layers/rotary_scaling.h"

namespace trireme::models::llama {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, num_key_value_heads, head_size, intermediate_size;
  std::optional<std::int64_t> vocab_size, max_positions;
  std::optional<double> attention_dropout, rms_norm_eps, rope_theta, initializer_range;
  std::optional<bool> tied, attention_bias, mlp_bias;

  // Set from the kind, the loaded weights and the data; not keys of [model].
  bool query_key_norm = false;
  std::int64_t padding_id = -1;
  nn::RotaryScaling rope;
  std::int64_t longest = 0;  ///< the most tokens of a sample
};

/// What the tables of these models differ in.
struct Variant {
  std::string name, text;
  std::string size_text;                                    ///< what the key `size` says besides its values
  Presets presets;                                          ///< without key
  std::vector<std::pair<std::string, FieldValue>> implied;  ///< by config.json without the key, as in transformers
};
Fields<Options> fields_of(Variant variant);

/// Llama's.
const Fields<Options>& fields();

/// @throws ConfigError
void resolve_with(const Fields<Options>& fields, Options& options, const nn::DataSpec& data);
inline void resolve(Options& options, const nn::DataSpec& data) { resolve_with(fields(), options, data); }

}  // namespace trireme::models::llama
