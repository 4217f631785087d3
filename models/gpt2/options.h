// Options of GPT-2, as in [model] and in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/fields.h"
#include "core/nn/data_spec.h"

namespace trireme::models::gpt2 {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, intermediate_size, vocab_size, max_positions;
  std::optional<double> dropout, embedding_dropout, attention_dropout, layer_norm_eps, initializer_range;
};

const Fields<Options>& fields();

/// @throws ConfigError
void resolve(Options& options, const nn::DataSpec& data);

}  // namespace trireme::models::gpt2
