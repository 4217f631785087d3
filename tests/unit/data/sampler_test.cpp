// The sampler's plan against contract C3, over a grid of sizes, batches, ranks and microbatches.
#include "core/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/data/distributed_sampler.h"

namespace trireme::data {
namespace {

void check_epoch(const SamplerOptions& base) {
  const Sampler first(base);
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
        for (auto at = micro.begin; at < micro.end; ++at) all_ranks.push_back(plan.share.begin + at);
      }
      EXPECT_EQ(local, plan.share.size());
      smallest = std::min(smallest, local);
      largest = std::max(largest, local);
    }
    EXPECT_LE(largest - smallest, 1);
    EXPECT_EQ(static_cast<std::int64_t>(micro_count), (largest + base.micro_batch - 1) / base.micro_batch);
    std::vector<std::int64_t> slice(static_cast<std::size_t>(end - begin));
    std::iota(slice.begin(), slice.end(), begin);
    EXPECT_EQ(all_ranks, slice) << "the ranks' shares in rank order are the global batch's positions";
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
            check_epoch({n, batch, micro, 0, ranks, drop_last});
          }
}

/// Samples that are never read; an empty order: that of every data set.
class Counted : public Dataset {
 public:
  explicit Counted(std::vector<std::int64_t> own = {}) : own_(std::move(own)) {}
  [[nodiscard]] std::int64_t size() const override { return 133; }
  std::optional<Sample> get(std::int64_t, std::int64_t, bool) override { return std::nullopt; }
  [[nodiscard]] std::vector<std::int64_t> order(const Shuffle& shuffle) const override {
    return own_.empty() ? Dataset::order(shuffle) : own_;
  }

 private:
  std::vector<std::int64_t> own_;
};

TEST(Sampler, AnEpochHoldsEachSampleOnceInItsOwnOrder) {
  const auto a = epoch_order(Counted(), Shuffle{5, 0}), b = epoch_order(Counted(), Shuffle{5, 1});
  EXPECT_EQ(std::set<std::int64_t>(a.begin(), a.end()).size(), 133U);
  EXPECT_NE(a, b);
  EXPECT_EQ(b, random::permutation(random::mix(random::mix(5, random::hash("shuffle")), 1), 133))
      << "checkpoints rely on this order";
  EXPECT_NE(a, epoch_order(Counted(), Shuffle{6, 0})) << "another seed";
  std::vector<std::int64_t> counting(133);
  std::iota(counting.begin(), counting.end(), 0);
  EXPECT_EQ(epoch_order(Counted(b), std::nullopt), counting);
  EXPECT_EQ(epoch_order(Counted(b), Shuffle{7, 3}), b) << "a data set's own order";
  auto twice = counting, outside = counting;
  twice[7] = 8;
  outside[7] = 133;
  for (const auto& wrong : {std::vector<std::int64_t>(132), twice, outside})
    EXPECT_THROW(epoch_order(Counted(wrong), Shuffle{5, 0}), UsageError);
}

// The k-th batches of all ranks together are the k-th global batch of a loader, and no sample is missing or repeated.
TEST(DistributedSampler, HasTheOrderOfTheLoaders) {
  constexpr std::int64_t kSamples = 22, kLocal = 2;
  for (const int ranks : {1, 2, 3, 5}) {
    const auto global_batch = static_cast<std::size_t>(kLocal * ranks);
    for (const std::int64_t epoch : {0, 1}) {
      DistributedSampler whole(kSamples, 1, 0, {.seed = 9});
      whole.set_epoch(epoch);
      const auto& order = whole.indices();
      EXPECT_EQ(std::set(order.begin(), order.end()).size(), static_cast<std::size_t>(kSamples));
      std::vector<std::set<std::int64_t>> batches((order.size() + global_batch - 1) / global_batch), expected(batches);
      std::int64_t count = 0;
      for (std::size_t at = 0; at < order.size(); ++at) expected[at / global_batch].insert(order[at]);
      for (int rank = 0; rank < ranks; ++rank) {
        DistributedSampler sampler(kSamples, ranks, rank, {.seed = 9});
        sampler.set_epoch(epoch);
        EXPECT_LE(std::abs(sampler.size() * ranks - kSamples), ranks - 1);
        count += sampler.size();
        for (std::int64_t i = 0; i < sampler.size(); ++i)
          batches[static_cast<std::size_t>(i / kLocal)].insert(sampler.indices()[static_cast<std::size_t>(i)]);
      }
      EXPECT_EQ(count, kSamples);
      EXPECT_EQ(batches, expected) << ranks << " ranks";
    }
  }
}

TEST(DistributedSampler, DividesGlobalBatchesAsTheLoadersDo) {
  constexpr std::int64_t kSamples = 22, kGlobal = 7;
  for (const int ranks : {1, 2, 3}) {
    const DistributedSampler whole(kSamples, 1, 0, {.seed = 9});
    std::vector<DistributedSampler> samplers;
    for (int rank = 0; rank < ranks; ++rank)
      samplers.emplace_back(kSamples, ranks, rank, DistributedSamplerOptions{.seed = 9, .global_batch = kGlobal});
    std::vector<std::int64_t> joined;
    std::vector<std::size_t> next(static_cast<std::size_t>(ranks), 0);
    for (std::int64_t begin = 0; begin < kSamples; begin += kGlobal)
      for (int rank = 0; rank < ranks; ++rank) {
        const auto share = shard::split(std::min(kGlobal, kSamples - begin), ranks, rank).size();
        const auto r = static_cast<std::size_t>(rank);
        for (std::int64_t i = 0; i < share; ++i) joined.push_back(samplers[r].indices().at(next[r]++));
      }
    EXPECT_EQ(joined, whole.indices()) << ranks << " ranks";
  }
}

TEST(DistributedSampler, GivesAllRanksTheSameSizeOnRequest) {
  std::map<std::int64_t, int> even, dropped;
  for (int rank = 0; rank < 4; ++rank) {
    const DistributedSampler of_even(6, 4, rank, {.even = true}), of_dropped(6, 4, rank, {.drop_last = true});
    EXPECT_EQ(of_even.size(), 2);
    EXPECT_EQ(of_dropped.size(), 1);
    for (const auto index : of_even) ++even[index];
    for (const auto index : of_dropped) ++dropped[index];
  }
  EXPECT_EQ(even.size(), 6U) << "no sample is missing";
  EXPECT_EQ(dropped.size(), 4U) << "no sample is repeated";
  EXPECT_EQ(DistributedSampler(1, 4, 3, {.even = true}).size(), 1) << "fewer samples than ranks";
  EXPECT_THROW(DistributedSampler(6, 4, 4), UsageError);
  EXPECT_THROW(DistributedSampler(6, 4, 0, {.drop_last = true, .even = true}), UsageError);
}

}  // namespace
}  // namespace trireme::data
