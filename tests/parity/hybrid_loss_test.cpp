// The loss of logits that are sharded over ranks, for any number of classes and samples, with label smoothing, class
// weights and mixed targets.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "core/nn/layers/chunked_cross_entropy.h"
#include "core/nn/layers/linear_cross_entropy.h"
#include "core/shard/placement.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

/// The options of a loss over `classes` classes and the labels for them, for some samples.
struct LossCase {
  std::string name;
  nn::CrossEntropyOptions options;
  at::Tensor labels;
};

std::vector<LossCase> loss_cases(std::int64_t classes, std::int64_t samples) {
  auto labels = at::arange(samples, on(at::kLong)) % classes;
  if (samples > 2) labels[1] = -100;  // no label, so it does not count
  const auto other = (at::arange(samples, on(at::kLong)) * 3 + 1) % classes;
  const auto share = at::rand({samples}, on(at::kDouble));
  const auto weights = at::rand({classes}, on(at::kDouble)) + 0.1;
  const auto two = at::stack({labels, other}, 1), shares = at::stack({share, 1 - share}, 1);
  return {{"plain", {}, labels},
          {"smoothed", {.label_smoothing = 0.3}, labels},
          {"weighted", {.class_weights = weights}, labels},
          {"weighted, smoothed", {.label_smoothing = 0.3, .class_weights = weights}, labels},
          {"mixed", {.shares = shares}, two},
          {"mixed, weighted, smoothed", {.label_smoothing = 0.2, .class_weights = weights, .shares = shares}, two}};
}

TEST(LabelLoss, IsCrossEntropy) {
  const auto& group = world().group();
  for (const std::int64_t classes : {1, 3, 8})
    for (const std::int64_t samples : {0, 1, 5}) {
      at::manual_seed(7);
      for (const auto& [name, options, labels] : loss_cases(classes, samples)) {
        SCOPED_TRACE(testing::Message() << classes << " classes, " << samples << " samples, " << name);
        const auto whole = (at::randn({samples, classes}, on(at::kDouble)) * 30).set_requires_grad(true);
        const auto expected = nn::cross_entropy(whole, labels, options);
        (expected * 0.7).backward();

        const auto mine = shard::split(classes, group.size(), group.rank());
        const auto part = whole.detach().narrow(1, mine.begin, mine.size()).clone().set_requires_grad(true);
        const auto got = nn::chunked_cross_entropy(part, labels, options, classes, &group);
        (got * 0.7).backward();
        EXPECT_NEAR(got.item<double>(), expected.item<double>(), 1e-12 * std::abs(expected.item<double>()) + 1e-12);
        EXPECT_TRUE(part.grad().allclose(whole.grad().narrow(1, mine.begin, mine.size()), 1e-12, 1e-12));
      }
    }
}

TEST(LabelLoss, OfAHeadIsCrossEntropyOfItsScores) {
  const auto& group = world().group();
  constexpr std::int64_t kFeatures = 4;
  for (const std::int64_t classes : {1, 3, 8})
    for (const std::int64_t samples : {0, 1, 5}) {
      at::manual_seed(7);
      const auto leaf = [](at::IntArrayRef shape) { return at::randn(shape, on(at::kDouble)).set_requires_grad(true); };
      for (const auto& [name, options, labels] : loss_cases(classes, samples)) {
        SCOPED_TRACE(testing::Message() << classes << " classes, " << samples << " samples, " << name);
        const auto x = leaf({samples, kFeatures}), weight = leaf({classes, kFeatures}), bias = leaf({classes});
        const auto expected = nn::cross_entropy(at::linear(x, weight, bias), labels, options);
        (expected * 0.7).backward();

        const auto mine = shard::split(classes, group.size(), group.rank());
        const auto own = [&mine](const at::Tensor& whole) {
          return whole.detach().narrow(0, mine.begin, mine.size()).clone().set_requires_grad(true);
        };
        const auto part = own(weight), part_of_bias = own(bias), same = x.detach().clone().set_requires_grad(true);
        const auto got = nn::linear_cross_entropy({same, part, part_of_bias, classes, &group}, labels, options, 2);
        (got * 0.7).backward();
        EXPECT_NEAR(got.item<double>(), expected.item<double>(), 1e-12 * std::abs(expected.item<double>()) + 1e-12);
        EXPECT_TRUE(same.grad().allclose(x.grad(), 1e-12, 1e-12));
        EXPECT_TRUE(part.grad().allclose(weight.grad().narrow(0, mine.begin, mine.size()), 1e-12, 1e-12));
        EXPECT_TRUE(part_of_bias.grad().allclose(bias.grad().narrow(0, mine.begin, mine.size()), 1e-12, 1e-12));
      }
    }
}

}  // namespace
}  // namespace trireme::tests
