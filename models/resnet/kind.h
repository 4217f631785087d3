// Residual networks for image classification, with the arithmetic and the names of torchvision.models.resnet: stride 2
// is in a bottleneck's 3x3 convolution ("ResNet V1.5"). He et al., "Deep Residual Learning for Image Recognition",
// 2016. The config.json is the one that timm writes; torchvision's weights have none, and [model] depth then says what
// they are.
//
// Blocks: the stem (7x7 convolution of stride 2, norm, ReLU, 3x3 max-pool of stride 2); each residual block; the head
// (mean over the positions, and the classifier). One tensor [B, C, H, W] passes between blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/hf_config.h"
#include "core/nn/model_kind.h"
#include "models/parts.h"

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

/// The residual blocks of a depth.
struct Depth {
  std::int64_t layers;
  std::vector<std::int64_t> blocks;  ///< in each of the four stages
  bool bottleneck;                   ///< three convolutions a block, 1x1, 3x3 and 1x1; else two of 3x3
};
/// @throws ConfigError for a depth other than 18, 34, 50, 101 and 152
const Depth& depth_of(std::int64_t layers);

const Fields<Options>& fields();

class Kind : public nn::ModelKindOf<Options> {
 public:
  Kind() : ModelKindOf(resnet::fields()) {}
  [[nodiscard]] std::string default_task(const nn::DataSpec& data) const override { return task_of_labels(data); }
  [[nodiscard]] std::string head_prefix() const override { return "fc."; }

 protected:
  [[nodiscard]] nlohmann::json recognized(const nlohmann::json& config, const std::string& file) const override;
  void resolve_for(Options& options, const nn::DataSpec& data) const override;
  void read_from(Options& options, const nn::HfConfig& config) const override;
  void write_to(const Options& options, nlohmann::json& config) const override;
  void add_preparation(nlohmann::json& config, const nlohmann::json& preprocessor) const override;
  [[nodiscard]] std::vector<nn::OtherFormat> other_formats() const override;
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const Options& options) const override;
};

}  // namespace trireme::models::resnet
