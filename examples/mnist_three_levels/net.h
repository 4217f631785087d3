// What the three levels share: the network of PyTorch's MNIST example and its data.
//
// The network is a torch::nn::Module. Its layers are Trireme's, whose weights and dropout masks depend on seed, names
// and samples alone: all three programs compute the same on any number of ranks, and so does
// `trireme train configs/mnist_basic_net.toml`.
#pragma once

#include <ATen/ops/max_pool2d.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "trireme.h"

namespace nn = trireme::nn;
namespace data = trireme::data;

constexpr std::uint64_t kSeed = 42;
constexpr std::int64_t kEpochs = 1, kBatch = 64;  ///< kBatch: samples of a step, over all ranks

struct BasicNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images, const nn::Context& context) {
    auto x = conv1->forward(images, context).relu();
    x = conv2->forward(x, context).relu();
    x = dropout1->forward(at::max_pool2d(x, 2), context).flatten(1);
    x = dropout2->forward(fc1->forward(x, context).relu(), context);
    return fc2->forward(x, context);
  }

  std::shared_ptr<nn::Conv2d> conv1 = convolution("conv1", 1, 32), conv2 = convolution("conv2", 32, 64);
  std::shared_ptr<nn::Dropout> dropout1 = register_module("dropout1", std::make_shared<nn::Dropout>(0.25));
  std::shared_ptr<nn::Linear> fc1 = linear("fc1", 9216, 128);
  std::shared_ptr<nn::Dropout> dropout2 = register_module("dropout2", std::make_shared<nn::Dropout>(0.5));
  std::shared_ptr<nn::Linear> fc2 = linear("fc2", 128, 10);

 private:
  std::shared_ptr<nn::Conv2d> convolution(const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name, std::make_shared<nn::Conv2d>(nn::Conv2d::Options{.in = in, .out = out, .kernel = 3}));
  }
  std::shared_ptr<nn::Linear> linear(const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name,
                           std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .uniform = true}));
  }
};
TORCH_MODULE(BasicNet);

// The training images, and the 10,000 test images as the validation split. Pixels are normalised with MNIST's mean and
// standard deviation.
inline data::Datasets open_mnist(const std::string& folder) {
  trireme::datasets::StoredImageOptions options;
  options.path = folder;
  auto mnist = trireme::datasets::mnist(options);
  return data::open(mnist, {.seed = kSeed});
}

inline std::string result(std::int64_t epoch, double loss, double accuracy) {
  return fmt::format("epoch {}  training loss {:.12f}  accuracy {:.2f} %", epoch + 1, loss, 100 * accuracy);
}
