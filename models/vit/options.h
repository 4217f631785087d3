// Options of the Vision Transformer, as in [model] and in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/model_kind.h"

namespace trireme::models::vit {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, intermediate_size, patch_size;
  std::optional<double> dropout, attention_dropout, drop_path, layer_norm_eps, initializer_range;
  std::optional<bool> qkv_bias;

  // Set from the data; not keys of [model].
  std::int64_t channels = 3, image_size = 0, classes = 0;
  std::vector<std::string> class_names;
  std::optional<std::int64_t> weights_channels;  ///< of the loaded weights
};

inline constexpr const char* kPixels = "pixel_values";  ///< the model's input, [channels, side, side]

const Fields<Options>& fields();

/// Replaces options.size by the sizes that it stands for; those that are set already override it.
/// @throws ConfigError for an unknown size, and for one that all four sizes override
void apply_size(Options& options);

/// @throws ConfigError
void resolve(Options& options, const nn::DataSpec& data);

}  // namespace trireme::models::vit
