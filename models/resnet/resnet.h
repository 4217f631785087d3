// Residual networks for image classification, with the arithmetic and the names of torchvision.models.resnet: stride 2
// is in a bottleneck's 3x3 convolution ("ResNet V1.5"). He et al., "Deep Residual Learning for Image Recognition",
// 2016.
//
// Blocks: the stem (7x7 convolution of stride 2, norm, ReLU, 3x3 max-pool of stride 2); each residual block; the head
// (mean over the positions, and the classifier). One tensor [B, C, H, W] passes between blocks.
#pragma once

#include <string>
#include <vector>

#include "core/nn/block.h"
#include "models/resnet/options.h"

namespace trireme::models::resnet {

class ResNet : public nn::Model {
 public:
  /// @pre options are resolved
  explicit ResNet(const Options& options);
  std::vector<std::string> input_names() const override { return {kPixels}; }
};

}  // namespace trireme::models::resnet
