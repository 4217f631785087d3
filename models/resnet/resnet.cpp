#include <cmath>
#include <memory>
#include <utility>

#include "core/nn/layers/batch_norm.h"
#include "core/nn/layers/convolution.h"
#include "core/nn/layers/linear.h"
#include "models/head_block.h"
#include "models/parts.h"
#include "models/resnet/kind.h"

namespace trireme::models::resnet {
namespace {

using nn::Context;
using nn::Init;
using nn::Tensors;

/// Without bias, because a norm follows; weights are normal with the variance 2 / (out kernel^2). He et al., "Delving
/// Deep into Rectifiers", 2015.
std::shared_ptr<nn::Conv2d> convolution(const Options& options, std::int64_t in, std::int64_t out, std::int64_t kernel,
                                        std::int64_t stride) {
  const double deviation = std::sqrt(2 / static_cast<double>(out * kernel * kernel));
  return std::make_shared<nn::Conv2d>(nn::Conv2d::Options{.in = in,
                                                          .out = out,
                                                          .kernel = kernel,
                                                          .stride = stride,
                                                          .padding = kernel / 2,
                                                          .bias = false,
                                                          .init = Init::normal(0, deviation),
                                                          .channels_last = options.channels_last});
}

std::shared_ptr<nn::BatchNorm> norm(const Options& options, std::int64_t channels, bool starts_at_zero = false) {
  return std::make_shared<nn::BatchNorm>(nn::BatchNorm::Options{
      .channels = channels, .synchronised = options.sync_batch_norm, .starts_at_zero = starts_at_zero});
}

/// `x` in the memory format that the options ask for; what another pipeline stage sent is not in it.
at::Tensor formatted(const at::Tensor& x, bool channels_last) {
  return x.contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

/// The model names its layers: "conv1" and "bn1".
class Stem : public nn::Block {
 public:
  Stem(std::shared_ptr<nn::Unary> conv, std::shared_ptr<nn::Unary> norm, bool channels_last)
      : conv_(register_module("conv", std::move(conv))),
        norm_(register_module("norm", std::move(norm))),
        pool_(register_module(
            "pool", std::make_shared<nn::MaxPool2d>(nn::MaxPool2d::Options{.kernel = 3, .stride = 2, .padding = 1}))),
        channels_last_(channels_last) {
    set_path("stem");
  }
  Tensors forward(Tensors inputs, const Context& context) override {
    const auto x = conv_->forward(formatted(inputs.at(0), channels_last_), context);
    return {pool_->forward(norm_->forward(x, context).relu_(), context)};
  }

 private:
  std::shared_ptr<nn::Unary> conv_, norm_, pool_;
  bool channels_last_;
};

/// relu(x + the convolutions' result); where the shape changes, a 1x1 convolution and a norm adapt x.
class Residual : public nn::Block {
 public:
  Residual(const Options& options, std::int64_t in, std::int64_t planes, std::int64_t stride)
      : channels_last_(options.channels_last) {
    const bool bottleneck = depth_of(*options.depth).bottleneck;
    const auto out = bottleneck ? 4 * planes : planes;
    if (bottleneck) {
      add(options, in, planes, 1, 1);
      add(options, planes, planes, 3, stride);
      add(options, planes, out, 1, 1, options.zero_init_residual);
    } else {
      add(options, in, planes, 3, stride);
      add(options, planes, planes, 3, 1, options.zero_init_residual);
    }
    if (stride == 1 && in == out) return;
    auto& downsample = submodule(*this, "downsample");
    shortcut_ = {downsample.register_module("0", convolution(options, in, out, 1, stride)),
                 downsample.register_module("1", norm(options, out))};
  }

  Tensors forward(Tensors inputs, const Context& context) override {
    const auto x = formatted(inputs.at(0), channels_last_);
    auto y = x;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      y = steps_[i].norm->forward(steps_[i].conv->forward(y, context), context);
      if (i + 1 < steps_.size()) y = y.relu_();
    }
    const auto shortcut = shortcut_.conv ? shortcut_.norm->forward(shortcut_.conv->forward(x, context), context) : x;
    return {y.add_(shortcut).relu_()};
  }

 private:
  struct Step {
    std::shared_ptr<nn::Unary> conv, norm;
  };
  void add(const Options& options, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
           bool starts_at_zero = false) {
    const auto number = std::to_string(steps_.size() + 1);
    steps_.push_back({register_module("conv" + number, convolution(options, in, out, kernel, stride)),
                      register_module("bn" + number, norm(options, out, starts_at_zero))});
  }

  std::vector<Step> steps_;
  Step shortcut_;  ///< null where x is added as it is
  bool channels_last_;
};

class ResNet : public nn::Model {
 public:
  explicit ResNet(const Options& options);
  std::vector<std::string> input_names() const override { return {kPixels}; }
};

ResNet::ResNet(const Options& options) {
  const auto& depth = depth_of(*options.depth);
  auto channels = *options.width;
  add_block(std::make_shared<Stem>(register_module("conv1", convolution(options, options.channels, channels, 7, 2)),
                                   register_module("bn1", norm(options, channels)), options.channels_last));
  for (std::size_t stage = 0; stage < depth.blocks.size(); ++stage) {
    auto& layer = submodule(*this, "layer" + std::to_string(stage + 1));
    const auto planes = *options.width << stage;
    for (std::int64_t i = 0; i < depth.blocks[stage]; ++i) {
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      add_block(
          layer.register_module(std::to_string(i), std::make_shared<Residual>(options, channels, planes, stride)));
      channels = depth.bottleneck ? 4 * planes : planes;
    }
  }
  const auto classifier = register_module(
      "fc", std::make_shared<nn::Linear>(nn::Linear::Options{.in = channels, .out = options.classes, .uniform = true}));
  add_block(std::make_shared<HeadBlock>(HeadBlock::Layers{std::make_shared<nn::GlobalAveragePool>(), classifier}));
  finish();
}

}  // namespace

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const { return std::make_unique<ResNet>(options); }

}  // namespace trireme::models::resnet
