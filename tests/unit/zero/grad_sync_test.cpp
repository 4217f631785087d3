// GradSync on a world of one: states, accumulation, and which memory is held or freed.
#include "zero/grad_sync.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace trireme::zero {
namespace {

class GradSyncTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    for (const std::int64_t size : {5, 40, 3}) {
      auto value = at::full({size}, 1.0, at::kDouble).requires_grad_();
      const auto name = "p" + std::to_string(leaves.size());
      leaves.push_back({name, shard::Placement::whole(name, {size}), std::nullopt, value});
    }
    buckets = plan_buckets(leaves, {.elements = 40});  // {p2, p1} and {p0}
    const auto alone = comm::Group::alone("dp", 0, nullptr);
    const auto ranks = std::make_shared<const ReducingRanks>(ReducingRanks{alone, alone, alone, {}});
    for (auto& bucket : buckets) bucket.ranks = ranks;
    sync = std::make_unique<GradSync>(buckets, leaves, GradSyncOptions{.partition = GetParam()});
  }
  void give(std::size_t index, double value) {
    leaves[index].value.mutable_grad() = at::full(leaves[index].placement.shape, value, at::kDouble);
    sync->ready(index);
  }
  /// The first element of each parameter's gradient.
  std::vector<double> sums() {
    sync->finish();
    std::vector<double> out(leaves.size());
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (std::size_t i = 0; i < buckets[b].parameters.size(); ++i)
        out[buckets[b].parameters[i]] = sync->parts()[b][buckets[b].layout.item(i).begin].item<double>();
    return out;
  }
  std::vector<nn::Declaration> leaves;
  std::vector<Bucket> buckets;
  std::unique_ptr<GradSync> sync;
};
INSTANTIATE_TEST_SUITE_P(Stages, GradSyncTest, testing::Bool());

TEST_P(GradSyncTest, AddsPassesWithAndWithoutHold) {
  for (const bool hold : {false, true}) {
    for (int pass = 0; pass < 3; ++pass) {
      sync->hold(hold && pass < 2);
      for (const std::size_t index : {2, 0, 1}) give(index, 10.0 * static_cast<double>(index) + pass);
      sync->end_pass();
      for (const auto& leaf : leaves) EXPECT_FALSE(leaf.value.grad().defined()) << "freed at the parameter";
    }
    EXPECT_EQ(sums(), (std::vector<double>{3, 33, 63})) << "hold " << hold;
    sync->reset();
  }
}

TEST_P(GradSyncTest, MissingGradientsAreZeroAndReported) {
  give(1, 7);
  sync->end_pass();
  EXPECT_EQ(sums(), (std::vector<double>{0, 7, 0}));
  EXPECT_FALSE(sync->unused(1).defined());
  EXPECT_TRUE(sync->unused(0).item<bool>());
  sync->reset();
  give(0, 1), give(2, 2);
  sync->end_pass();
  EXPECT_EQ(sums(), (std::vector<double>{1, 0, 2})) << "nothing is left of the step before";
}

TEST_P(GradSyncTest, RefusesCallsOutOfOrder) {
  give(0, 1);
  EXPECT_THROW(give(0, 1), LogicError) << "twice in one pass";
  EXPECT_THROW(sync->finish(), LogicError) << "in the middle of a pass";
  sync->reset();
  EXPECT_THROW(sync->finish(), LogicError) << "no gradient arrived";
}

TEST_P(GradSyncTest, HoldsWhatItsStageAllows) {
  const auto all = static_cast<std::int64_t>((48 + 16 + 16) * sizeof(double));
  for (const std::size_t index : {2, 1, 0}) give(index, 1);
  sync->end_pass();
  sync->finish();
  EXPECT_EQ(sync->bytes(), all);  // one rank owns all
  sync->reset();
  EXPECT_EQ(sync->bytes(), GetParam() ? 0 : all);
}

}  // namespace
}  // namespace trireme::zero
