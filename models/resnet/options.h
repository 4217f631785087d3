// Options of ResNet, as in [model].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/data_spec.h"

namespace trireme::models::resnet {

/// Unset options come from the loaded weights, else from the default. resolve() sets all of them.
struct Options {
  std::optional<std::int64_t> depth, width;
  bool zero_init_residual = true, sync_batch_norm = false, channels_last = true;

  // Set from the data; not keys of [model].
  std::int64_t channels = 3, classes = 0;
  std::vector<std::string> class_names;
  std::optional<std::int64_t> weights_channels;  ///< those of the loaded weights
};

inline constexpr const char* kPixels = "pixel_values";  ///< the model's input, [channels, height, width]

/// The residual blocks of a depth.
struct Depth {
  std::int64_t layers;
  std::vector<std::int64_t> blocks;  ///< in each of the four stages
  bool bottleneck;                   ///< three convolutions a block, 1x1, 3x3 and 1x1; else two of 3x3
};
/// @throws ConfigError for a depth other than 18, 34, 50, 101 and 152
const Depth& depth_of(std::int64_t layers);

const Fields<Options>& fields();

/// @throws ConfigError
void resolve(Options& options, const nn::DataSpec& data);

}  // namespace trireme::models::resnet
