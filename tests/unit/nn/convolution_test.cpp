// Convolution and pooling on one rank equal LibTorch's in values, gradients, memory format and initial distribution.
#include "core/nn/layers/convolution.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>

#include <cmath>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

const Context kContext;

TEST(Conv2d, EqualsLibTorch) {
  for (const Conv2d::Options& o : {Conv2d::Options{.in = 4, .out = 6, .kernel = 3, .padding = 1},
                                   Conv2d::Options{.in = 4, .out = 6, .kernel = 3, .stride = 2, .bias = false},
                                   Conv2d::Options{.in = 4, .out = 8, .kernel = 1, .stride = 2},
                                   Conv2d::Options{.in = 4, .out = 6, .kernel = 2, .dilation = 2, .groups = 2}})
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      SCOPED_TRACE(fmt::format("kernel {}, stride {}, groups {}, {}", o.kernel, o.stride, o.groups, int(format)));
      Conv2d ours(o);
      torch::nn::Conv2d theirs(torch::nn::Conv2dOptions(o.in, o.out, o.kernel)
                                   .stride(o.stride)
                                   .padding(o.padding)
                                   .dilation(o.dilation)
                                   .groups(o.groups)
                                   .bias(o.bias));
      theirs->to(at::kDouble);
      ours.set_storage("weight", theirs->weight.detach().clone());
      if (o.bias) ours.set_storage("bias", theirs->bias.detach().clone());
      auto x = at::randn({3, o.in, 7, 6}, at::kDouble).contiguous(format).requires_grad_();
      auto same = x.detach().clone().requires_grad_();
      const auto y = ours.forward(x, kContext), expected = theirs->forward(same);
      ASSERT_EQ(y.sizes(), expected.sizes());
      EXPECT_TRUE(at::allclose(y, expected, 1e-12, 1e-12));
      EXPECT_TRUE(y.is_contiguous(format));
      const auto gradient = at::rand(y.sizes(), at::kDouble);
      y.backward(gradient);
      expected.backward(gradient);
      EXPECT_TRUE(at::allclose(x.grad(), same.grad(), 1e-11, 1e-12));
      EXPECT_TRUE(at::allclose(ours.weight.grad(), theirs->weight.grad(), 1e-11, 1e-12));
      if (o.bias) {
        EXPECT_TRUE(at::allclose(ours.bias.grad(), theirs->bias.grad(), 1e-11, 1e-12));
      }
    }
}

// A heap that this corrupts is noticed later, or in a tool that watches memory.
TEST(Conv2d, KeepsWithinItsMemoryOverFewChannels) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    Conv2d layer({.in = 4, .out = 8, .kernel = 1, .stride = 2});
    for (const auto& declared : layer.declared())
      layer.set_storage(declared.name, at::randn(declared.member->sizes(), at::kFloat));
    for (int i = 0; i < 50; ++i) {
      const auto x = at::randn({2, 4, 8, 8}, at::kFloat).contiguous(format).requires_grad_();
      const auto y = layer.forward(x, kContext);
      const auto in_double = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
      const auto expected = at::conv2d(in_double(x), in_double(layer.weight), in_double(layer.bias), /*stride=*/2);
      EXPECT_TRUE(at::allclose(in_double(y), expected, 1e-4, 1e-4));
      y.sum().backward();
      EXPECT_EQ(x.grad().count_nonzero().item<std::int64_t>(), 2 * 4 * 4 * 4);
    }
  }
}

/// torch.nn.Conv2d draws weight and bias uniformly within 1 / sqrt(fan in).
TEST(Conv2d, InitialisesFromLibTorchsDistribution) {
  Conv2d layer({.in = 8, .out = 4, .kernel = 3, .groups = 2});
  const double bound = 1 / std::sqrt(4 * 9.0);
  for (const auto& declared : layer.declared()) {
    const auto value = shard::draw(declared.init, 3, shard::Placement::whole("x", {4000}), at::kFloat, at::kCPU);
    EXPECT_NEAR(value.max().item<double>(), bound, 0.01 * bound) << declared.name;
    EXPECT_NEAR(value.min().item<double>(), -bound, 0.01 * bound) << declared.name;
    EXPECT_NEAR(value.mean().item<double>(), 0, 0.05 * bound) << declared.name;
  }
  const Conv2d other({.in = 8, .out = 4, .kernel = 3, .bias = false, .init = Init::zeros()});
  ASSERT_EQ(other.declared().size(), 1U);
  EXPECT_EQ(other.declared().front().init.kind, Init::Kind::zeros);
}

TEST(Conv2d, TakesABatchWithoutSamples) {
  Conv2d layer({.in = 3, .out = 2, .kernel = 3});
  layer.set_storage("weight", at::rand({2, 3, 3, 3}));
  layer.set_storage("bias", at::rand({2}));
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const auto y = layer.forward(at::zeros({0, 3, 5, 5}).contiguous(format), kContext);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 2, 3, 3}));
    y.sum().backward();
  }
  EXPECT_EQ(layer.weight.grad().abs().max().item<double>(), 0);
}

TEST(Conv2d, NamesInputsThatDoNotFit) {
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = 1, .groups = 2}), UsageError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 3, .kernel = 0}), UsageError);
  Conv2d layer({.in = 3, .out = 2, .kernel = 5, .padding = 1});
  layer.set_path("features.0");
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{2, 4, 8, 8}, {2, 3, 8, 2}, {3, 8, 8}})
    try {
      layer.forward(at::zeros(shape), kContext);
      ADD_FAILURE() << shape;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("\"features.0\" takes [samples, 3 channels, at least 3 rows"),
                std::string::npos)
          << error.what();
    }
}

TEST(Pooling, EqualsLibTorch) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const auto x = at::randn({2, 3, 9, 8}, at::kDouble).contiguous(format);
    MaxPool2d pool({.kernel = 3, .stride = 2, .padding = 1});
    torch::nn::MaxPool2d theirs(torch::nn::MaxPool2dOptions(3).stride(2).padding(1));
    EXPECT_TRUE(at::allclose(pool.forward(x, kContext), theirs->forward(x)));
    GlobalAveragePool average;
    torch::nn::AdaptiveAvgPool2d whole(torch::nn::AdaptiveAvgPool2dOptions(1));
    EXPECT_TRUE(at::allclose(average.forward(x, kContext), whole->forward(x).flatten(1), 1e-12, 1e-12));
    EXPECT_TRUE(pool.forward(x, kContext).is_contiguous(format));
    auto ours = x.clone().requires_grad_(), same = x.clone().requires_grad_();
    average.forward(pool.forward(ours, kContext), kContext).square().sum().backward();
    whole->forward(theirs->forward(same)).square().sum().backward();
    EXPECT_TRUE(at::allclose(ours.grad(), same.grad(), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(MaxPool2d({.kernel = 2}).forward(x, kContext), at::max_pool2d(x, 2)));
  }
}

TEST(Pooling, NamesWhatDoesNotFit) {
  EXPECT_THROW(MaxPool2d({.kernel = 2, .padding = 2}), UsageError);
  EXPECT_THROW(MaxPool2d({.kernel = 3}).forward(at::zeros({1, 1, 2, 5}), kContext), ConfigError);
  EXPECT_THROW(GlobalAveragePool().forward(at::zeros({1, 4}), kContext), ConfigError);
}

}  // namespace
}  // namespace trireme::nn
