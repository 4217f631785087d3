// Partitions: uniform ones, and optimal ones by cost.
#include "pipeline/stage_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/base/error.h"

namespace trireme::pipeline {
namespace {

std::vector<std::int64_t> sizes_of(const std::vector<Stage>& stages) {
  std::vector<std::int64_t> sizes;
  std::int64_t at = 0;
  for (const auto& stage : stages) {
    EXPECT_EQ(stage.begin, at);
    at = stage.end;
    sizes.push_back(stage.size());
  }
  return sizes;
}

using BlockCounts = std::vector<std::int64_t>;

TEST(Partition, UniformPutsTheRemainderInTheMiddle) {
  EXPECT_EQ(sizes_of(partition_uniform(12, 4)), (BlockCounts{3, 3, 3, 3}));
  EXPECT_EQ(sizes_of(partition_uniform(12, 5)), (BlockCounts{2, 3, 3, 2, 2}));
  EXPECT_EQ(sizes_of(partition_uniform(10, 4)), (BlockCounts{2, 3, 3, 2}));
  EXPECT_EQ(sizes_of(partition_uniform(3, 3)), (BlockCounts{1, 1, 1}));
  EXPECT_EQ(sizes_of(partition_uniform(7, 1)), (BlockCounts{7}));
  EXPECT_THROW(partition_uniform(3, 4), ConfigError);
}

/// The least cost of the dearest stage over all partitions, then the least sum of squares.
std::pair<double, double> least(const std::vector<double>& costs, std::size_t begin, int stages) {
  std::pair<double, double> best{1e300, 0};
  double cost = 0;
  for (std::size_t end = begin + 1; end <= costs.size(); ++end) {
    cost += costs[end - 1];
    if (stages == 1 && end < costs.size()) continue;
    if (stages > 1 && costs.size() - end < static_cast<std::size_t>(stages) - 1) break;
    auto rest = stages == 1 ? std::pair{0.0, 0.0} : least(costs, end, stages - 1);
    best = std::min(best, {std::max(cost, rest.first), cost * cost + rest.second});
  }
  return best;
}

TEST(Partition, ByCostIsOptimal) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(1 + random() % 9);
    for (auto& cost : costs) cost = static_cast<double>(random() % 8);  // whole numbers: sums are exact
    const int stages = 1 + static_cast<int>(random() % costs.size());
    const auto sizes = sizes_of(partition_by_cost(costs, stages));
    ASSERT_EQ(sizes.size(), static_cast<std::size_t>(stages));
    double dearest = 0, squares = 0;
    std::size_t at = 0;
    for (const auto size : sizes) {
      EXPECT_GE(size, 1);
      double cost = 0;
      for (std::int64_t i = 0; i < size; ++i) cost += costs[at++];
      dearest = std::max(dearest, cost);
      squares += cost * cost;
    }
    EXPECT_EQ(at, costs.size());
    EXPECT_EQ(std::pair(dearest, squares), least(costs, 0, stages)) << "round " << round;
  }
  EXPECT_EQ(sizes_of(partition_by_cost({5, 1, 1, 1, 1, 5}, 3)), (BlockCounts{1, 4, 1}));
  EXPECT_EQ(sizes_of(partition_by_cost({1, 1, 1}, 2)), (BlockCounts{2, 1}));
  EXPECT_THROW(partition_by_cost({1, 1}, 3), ConfigError);
}

TEST(Partition, AGivenOneMustFit) {
  EXPECT_EQ(sizes_of(partition_given({1, 4, 2}, 7, 3)), (BlockCounts{1, 4, 2}));
  EXPECT_THROW(partition_given({1, 4, 2}, 8, 3), ConfigError);
  EXPECT_THROW(partition_given({1, 4, 2}, 7, 2), ConfigError);
  EXPECT_THROW(partition_given({7, 0}, 7, 2), ConfigError);
}

}  // namespace
}  // namespace trireme::pipeline
