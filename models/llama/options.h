// Options of Llama, as in [model] and in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/fields.h"
#include "core/nn/data_spec.h"

namespace trireme::models::llama {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, num_key_value_heads, head_size, intermediate_size;
  std::optional<std::int64_t> vocab_size, max_positions;
  std::optional<double> attention_dropout, rms_norm_eps, rope_theta, initializer_range;
  std::optional<bool> tied, attention_bias, mlp_bias;

  // Set from the loaded weights; not a key of [model].
  std::int64_t padding_id = -1;
};

const Fields<Options>& fields();

/// @throws ConfigError
void resolve(Options& options, const nn::DataSpec& data);

}  // namespace trireme::models::llama
