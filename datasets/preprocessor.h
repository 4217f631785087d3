// preprocessor_config.json, the file beside weights in Hugging Face's layout that says how images are prepared. It is
// read where weights are loaded and written where weights are exported.
#pragma once

#include <string>

#include "datasets/image_options.h"

namespace trireme::datasets {

/// Sets mean and std where the user left them open: to those of the weights that the model starts from, which it logs,
/// else to the `usual` values. @throws ConfigError when the user set other values than the weights have; it names both
/// places.
/// @throws CheckpointError for an invalid file
void fill_normalisation(ImageOptions& options, const data::OpenContext& context,
                        const Normalisation& usual = kUsualNormalisation);

/// The file's text for images of this size: for a ViTImageProcessor, or with options.resize_shorter for a
/// BitImageProcessor, which resizes the shorter side and crops the centre. @pre mean and std are set
std::string preprocessor_config(const ImageOptions& options, const nn::ImageSize& size);

}  // namespace trireme::datasets
