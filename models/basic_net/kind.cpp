#include "models/basic_net/kind.h"

#include <ATen/ops/relu.h>

#include <utility>

#include "core/nn/hf_config.h"
#include "core/nn/layers/convolution.h"
#include "core/nn/layers/dropout.h"
#include "core/nn/layers/linear.h"
#include "models/head_block.h"
#include "models/parts.h"

namespace trireme::models::basic_net {
namespace {

using nn::Context;
using nn::Tensors;

constexpr std::int64_t kFirst = 32, kSecond = 64, kHidden = 128;
constexpr std::int64_t kLeast = 6;  ///< pixels a side: the convolutions take four, the pool needs two

std::shared_ptr<nn::Conv2d> convolution(std::int64_t in, std::int64_t out) {
  return std::make_shared<nn::Conv2d>(nn::Conv2d::Options{.in = in, .out = out, .kernel = 3});
}
std::shared_ptr<nn::Linear> linear(std::int64_t in, std::int64_t out) {
  return std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .uniform = true});
}

/// Each block has layers that the model names; the path is the block's own.
class Features : public nn::Block {
 public:
  Features(std::shared_ptr<nn::Unary> conv1, std::shared_ptr<nn::Unary> conv2, std::shared_ptr<nn::Unary> dropout)
      : conv1_(register_module("conv1", std::move(conv1))),
        conv2_(register_module("conv2", std::move(conv2))),
        dropout_(register_module("dropout", std::move(dropout))),
        pool_(register_module("pool", std::make_shared<nn::MaxPool2d>(nn::MaxPool2d::Options{.kernel = 2}))) {
    set_path("features");
  }
  Tensors forward(Tensors inputs, const Context& context) override {
    auto x = conv1_->forward(inputs.at(0), context).relu_();
    x = conv2_->forward(x, context).relu_();
    return {dropout_->forward(pool_->forward(x, context), context)};
  }

 private:
  std::shared_ptr<nn::Unary> conv1_, conv2_, dropout_, pool_;
};

class Hidden : public nn::Block {
 public:
  Hidden(std::shared_ptr<nn::Unary> linear, std::shared_ptr<nn::Unary> dropout)
      : linear_(register_module("linear", std::move(linear))),
        dropout_(register_module("dropout", std::move(dropout))) {
    set_path("hidden");
  }
  Tensors forward(Tensors inputs, const Context& context) override {
    const auto x = at::relu(linear_->forward(inputs.at(0).flatten(1), context));
    return {dropout_->forward(x, context)};
  }

 private:
  std::shared_ptr<nn::Unary> linear_, dropout_;
};

class BasicNet : public nn::Model {
 public:
  explicit BasicNet(const Options& o) {
    const auto dropout = [&](const char* name, double p) {
      return register_module(name, std::make_shared<nn::Dropout>(p));
    };
    const auto features = kSecond * ((o.height - 4) / 2) * ((o.width - 4) / 2);
    add_block(std::make_shared<Features>(register_module("conv1", convolution(o.channels, kFirst)),
                                         register_module("conv2", convolution(kFirst, kSecond)),
                                         dropout("dropout1", *o.dropout)));
    add_block(std::make_shared<Hidden>(register_module("fc1", linear(features, kHidden)),
                                       dropout("dropout2", *o.hidden_dropout)));
    add_block(std::make_shared<HeadBlock>(HeadBlock::Layers{register_module("fc2", linear(kHidden, o.classes))}));
    finish();
  }
  std::vector<std::string> input_names() const override { return {kPixels}; }
};

}  // namespace

const Fields<Options>& fields() {
  static const auto table =
      Fields<Options>("model", "The small convolutional network of PyTorch's MNIST example, for image classification.")
          .with("name", "basic_net")
          .add("dropout", &Options::dropout,
               "Dropout probability after the pool. Unset: that of the loaded weights, else 0.25.",
               {.min = 0, .below = 1, .implied = 0.25, .overrides = true})
          .add("hidden_dropout", &Options::hidden_dropout,
               "Dropout probability after the hidden layer. Unset: that of the loaded weights, else 0.5.",
               {.min = 0, .below = 1, .implied = 0.5, .overrides = true});
  return table;
}

void Kind::write_to(const Options& options, nlohmann::json& config) const {
  nn::add_labels(config, options.classes, options.class_names);
}

void Kind::resolve_for(Options& options, const nn::DataSpec& data) const {
  const auto& pixels = data.required_input(kPixels, "model \"basic_net\"");
  if (pixels.shape.size() != 3 || pixels.varies() || pixels.shape[1] < kLeast || pixels.shape[2] < kLeast)
    throw ConfigError(fmt::format(
        "model \"basic_net\" reads {0} [channels, height, width] of at least {1} x {1} pixels, but the data "
        "have {2}",
        kPixels, kLeast, pixels.text()));
  check_one_output(data, "basic_net");
  nn::fill_unset(fields(), &options);
  options.channels = pixels.shape[0];
  options.height = pixels.shape[1];
  options.width = pixels.shape[2];
  options.classes = data.classes;
  options.class_names = data.class_names;
}

std::unique_ptr<nn::Model> Kind::make_model(const Options& options) const {
  return std::make_unique<BasicNet>(options);
}

}  // namespace trireme::models::basic_net
