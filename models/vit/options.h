// Options of the Vision Transformer, as in [model] and in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/layers/image_size.h"
#include "core/nn/model_kind.h"

namespace trireme::models::vit {

/// Unset options come from the loaded weights, else from the size, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::string> size, hidden_act;
  std::optional<std::int64_t> hidden_size, num_layers, num_heads, intermediate_size, patch_size;
  std::optional<double> dropout, attention_dropout, drop_path, layer_norm_eps, initializer_range;
  std::optional<bool> qkv_bias;

  // Set from the data; not keys of [model].
  std::int64_t channels = 3, classes = 0;
  nn::ImageSize image_size;
  std::vector<std::string> class_names;
  // What the config.json of the loaded weights says of the images that they are for.
  std::optional<std::int64_t> weights_channels;
  std::optional<nn::ImageSize> weights_image_size;
};

inline constexpr const char* kPixels = "pixel_values";  ///< the model's input, [channels, height, width]

/// The patches of an image, row by row.
struct PatchGrid {
  std::int64_t rows = 0, columns = 0;
  [[nodiscard]] std::int64_t patches() const { return rows * columns; }
  friend bool operator==(const PatchGrid&, const PatchGrid&) = default;
};
/// Pixels at the right and lower edge that fill no patch are left out.
inline PatchGrid grid_of(const nn::ImageSize& image, std::int64_t patch_size) {
  return {image.height / patch_size, image.width / patch_size};
}

const Fields<Options>& fields();

/// @throws ConfigError
void resolve(Options& options, const nn::DataSpec& data);

}  // namespace trireme::models::vit
