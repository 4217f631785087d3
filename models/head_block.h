// HeadBlock: the last block of a model whose head is a list of layers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/block.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/tokens.h"

namespace trireme::models {

/// Runs layers of the model's tree, which names them, one after the other. The layers behind an nn::FirstToken get that
/// token alone.
class HeadBlock : public nn::Block {
 public:
  using Layers = std::vector<std::shared_ptr<nn::Unary>>;
  explicit HeadBlock(const Layers& layers) : HeadBlock(layers, {layers.begin(), layers.end()}) {}
  /// `roots`: the modules that hold the layers, and whatever else these need.
  HeadBlock(Layers layers, const std::vector<std::shared_ptr<torch::nn::Module>>& roots) : layers_(std::move(layers)) {
    for (std::size_t i = 0; i < roots.size(); ++i) register_module(std::to_string(i), roots[i]);
    set_path("head");
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    auto x = inputs.at(0);
    for (const auto& layer : layers_) {
      x = layer->forward(x, context);
      if (dynamic_cast<nn::FirstToken*>(layer.get()) != nullptr) x = x.select(1, 0);
    }
    return {x};
  }
  [[nodiscard]] bool returns_scores() const override {
    return !layers_.empty() && dynamic_cast<const nn::TiedHead*>(layers_.back().get()) != nullptr;
  }

 private:
  Layers layers_;
};

}  // namespace trireme::models
