// The loss of logits that are sharded over ranks, for any number of classes and samples, with label smoothing.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "core/shard/placement.h"
#include "shardformer/label_loss.h"
#include "tests/mpi/world.h"

namespace trireme::tests {
namespace {

TEST(LabelLoss, IsCrossEntropy) {
  const auto& group = world().group();
  for (const std::int64_t classes : {1, 3, 8})
    for (const std::int64_t samples : {0, 1, 5})
      for (const double smoothing : {0.0, 0.3}) {
        SCOPED_TRACE(testing::Message() << classes << " classes, " << samples << " samples, smoothing " << smoothing);
        at::manual_seed(7);
        const auto whole = (at::randn({samples, classes}, on(at::kDouble)) * 30).set_requires_grad(true);
        auto labels = at::arange(samples, on(at::kLong)) % classes;
        if (samples > 2) labels[1] = -100;  // no label, so it does not count
        const auto expected = nn::cross_entropy(whole, labels, smoothing);
        (expected * 0.7).backward();

        const auto mine = shard::split(classes, group.size(), group.rank());
        const auto part = whole.detach().narrow(1, mine.begin, mine.size()).clone().set_requires_grad(true);
        const auto got = shardformer::label_parallel_loss(part, labels, smoothing, classes, group);
        (got * 0.7).backward();
        EXPECT_NEAR(got.item<double>(), expected.item<double>(), 1e-12 * std::abs(expected.item<double>()) + 1e-12);
        EXPECT_TRUE(part.grad().allclose(whole.grad().narrow(1, mine.begin, mine.size()), 1e-12, 1e-12));
      }
}

}  // namespace
}  // namespace trireme::tests
