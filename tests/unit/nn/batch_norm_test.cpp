// BatchNorm on one rank equals LibTorch's in training and in evaluation, also in its synchronised form, which
// tests/parity/buffers_norm_test.cpp tests on several ranks.
#include "core/nn/layers/batch_norm.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

class Normalises : public testing::TestWithParam<bool> {};

TEST_P(Normalises, AsLibTorchDoes) {
  const bool synchronised = GetParam();
  BatchNorm ours({.channels = 4, .eps = 1e-3, .momentum = 0.3, .synchronised = synchronised});
  torch::nn::BatchNorm2d theirs(torch::nn::BatchNorm2dOptions(4).eps(1e-3).momentum(0.3));
  theirs->to(at::kDouble);
  ours.set_storage("weight", theirs->weight.detach().clone());
  ours.set_storage("bias", theirs->bias.detach().clone());
  ours.to(at::kDouble);
  if (synchronised) ours.sum_over_ranks = [](const at::Tensor&) {};
  Context context;
  for (const bool training : {true, true, false, true}) {
    context.training = training;
    theirs->train(training);
    auto x = at::randn({3, 4, 2, 5}, at::kDouble).add_(7).requires_grad_();
    auto same = x.detach().clone().requires_grad_();
    const auto y = ours.forward(x, context), expected = theirs->forward(same);
    EXPECT_TRUE(at::allclose(y, expected, 1e-12, 1e-12));
    const auto gradient = at::rand(y.sizes(), at::kDouble);
    y.backward(gradient);
    expected.backward(gradient);
    EXPECT_TRUE(at::allclose(x.grad(), same.grad(), 1e-9, 1e-12));
    EXPECT_TRUE(at::allclose(ours.weight.grad(), theirs->weight.grad(), 1e-9, 1e-12));
    EXPECT_TRUE(at::allclose(ours.bias.grad(), theirs->bias.grad(), 1e-9, 1e-12));
  }
  EXPECT_TRUE(at::allclose(ours.running_mean, theirs->running_mean, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(ours.running_var, theirs->running_var, 1e-12, 1e-12));
  EXPECT_EQ(ours.num_batches_tracked.item<std::int64_t>(), 3);
  const auto names = theirs->named_buffers();
  for (const auto& item : ours.named_buffers()) EXPECT_NE(names.find(item.key()), nullptr) << item.key();
}
INSTANTIATE_TEST_SUITE_P(Forms, Normalises, testing::Bool());

/// One value per channel has no variance; a batch without samples has not even a mean.
TEST(BatchNorm, SmallBatchesChangeNoRunningStatistics) {
  Context context;
  context.training = true;
  for (const auto& [samples, synchronised] :
       {std::pair<std::int64_t, bool>{0, false}, {1, false}, {0, true}, {1, true}}) {
    BatchNorm norm({.channels = 3, .synchronised = synchronised});
    norm.set_storage("weight", at::rand({3}));
    norm.set_storage("bias", at::rand({3}));
    if (synchronised) norm.sum_over_ranks = [](const at::Tensor&) {};
    const auto y = norm.forward(at::rand({samples, 3}), context);
    EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{samples, 3}));
    y.sum().backward();
    if (samples == 1) {
      EXPECT_TRUE(at::allclose(y[0], norm.bias, 1e-3, 1e-3));
    }
    EXPECT_TRUE(at::equal(norm.running_var, at::ones({3})));
    EXPECT_TRUE(at::equal(norm.running_mean, at::zeros({3})));
    EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 0);
  }
}

TEST(BatchNorm, NamesAnInputWithOtherChannels) {
  BatchNorm norm({.channels = 4});
  norm.set_path("stem.norm");
  try {
    norm.forward(at::randn({2, 3, 5}), {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("\"stem.norm\" takes [samples, 4 channels, ...], but its input has the "
                        "shape [2, 3, 5]"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::nn
