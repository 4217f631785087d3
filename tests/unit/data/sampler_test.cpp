// The sampler's plan against contract C3, over a grid of sizes, batches, ranks and microbatches.
#include "core/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace trireme::data {
namespace {

void check_epoch(const SamplerOptions& base, std::int64_t epoch) {
  const Sampler first(base);
  const auto order = first.order(epoch);
  const auto n = base.samples, batch = base.global_batch;
  EXPECT_EQ(first.steps_per_epoch(), base.drop_last ? n / batch : (n + batch - 1) / batch);
  for (std::int64_t step = 0; step < first.steps_per_epoch(); ++step) {
    const auto begin = step * batch, end = std::min(begin + batch, n);
    std::vector<std::int64_t> all_ranks;
    std::size_t micro_count = 0;
    std::int64_t smallest = n, largest = 0;
    for (int rank = 0; rank < base.dp_size; ++rank) {
      auto options = base;
      options.dp_rank = rank;
      const auto plan = Sampler(options).step(step);
      EXPECT_EQ(plan.global_samples, end - begin);
      if (rank == 0) micro_count = plan.micro.size();
      EXPECT_EQ(plan.micro.size(), micro_count) << "every rank runs the same number of microbatches";
      std::int64_t local = 0;
      for (const auto& micro : plan.micro) {
        EXPECT_LE(micro.size(), base.micro_batch);
        local += micro.size();
        for (auto position = micro.begin; position < micro.end; ++position)
          all_ranks.push_back(order[static_cast<std::size_t>(position)]);
      }
      EXPECT_EQ(local, plan.share.size());
      smallest = std::min(smallest, local);
      largest = std::max(largest, local);
    }
    EXPECT_LE(largest - smallest, 1);
    EXPECT_EQ(static_cast<std::int64_t>(micro_count), (largest + base.micro_batch - 1) / base.micro_batch);
    const std::vector<std::int64_t> slice(order.begin() + begin, order.begin() + end);
    EXPECT_EQ(all_ranks, slice) << "the ranks' shares in rank order are the permutation's slice";
  }
}

TEST(Sampler, EveryRankHasItsPartOfEachGlobalBatch) {
  for (const std::int64_t n : {1, 7, 64, 133})
    for (const std::int64_t batch : {1, 5, 32})
      for (int ranks = 1; ranks <= 4; ++ranks)
        for (std::int64_t micro = 1; micro <= 8; ++micro)
          for (const bool drop_last : {false, true}) {
            SCOPED_TRACE(testing::Message() << "n " << n << " G " << batch << " dp " << ranks << " micro " << micro
                                            << (drop_last ? " drop_last" : ""));
            check_epoch({n, batch, micro, 0, ranks, 3, true, drop_last}, 1);
          }
}

TEST(Sampler, AnEpochHoldsEachSampleOnceInItsOwnOrder) {
  const Sampler shuffled({133, 32, 8, 0, 2, 5, true, false});
  const auto a = shuffled.order(0), b = shuffled.order(1);
  EXPECT_EQ(std::set<std::int64_t>(a.begin(), a.end()).size(), 133U);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, Sampler({133, 4, 1, 1, 3, 5, true, true}).order(0)) << "the order does not depend on batch and ranks";
  EXPECT_NE(a, Sampler({133, 32, 8, 0, 2, 6, true, false}).order(0)) << "another seed";
  std::vector<std::int64_t> counting(133);
  std::iota(counting.begin(), counting.end(), 0);
  EXPECT_EQ(Sampler({133, 32, 8, 0, 2, 5, false, false}).order(3), counting);
}

}  // namespace
}  // namespace trireme::data
