// Length buckets: the order is a permutation that no layout changes, and less is padded.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "datasets/text/length_buckets.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kTexts = 1003, kBatch = 8;

class TextBuckets : public TextTest {
 protected:
  [[nodiscard]] std::shared_ptr<Dataset> texts(bool buckets) const {
    datasets::TextClassificationOptions o;
    std::string table = "text\tlabel\n";
    for (std::int64_t i = 0; i < kTexts; ++i)
      table += std::string(static_cast<std::size_t>(1 + i * i % 61), 'x') + "\t0\n";
    o.train = o.validation = write("texts.tsv", table);
    o.tokenizer = "bytes";
    o.length_buckets = buckets;
    return open(datasets::text_classification(o)).train;
  }
  static std::int64_t length(Dataset& data, std::int64_t index) {
    return data.get(index, 0, true)->inputs["input_ids"].size(0);
  }
};

TEST_F(TextBuckets, TheOrderIsAPermutationOfLikeLengths) {
  const auto data = texts(true);
  const auto order = data->order({.seed = 3, .epoch = 1, .global_batch = kBatch});
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < kTexts; ++i) ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(order, data->order({.seed = 3, .epoch = 1, .global_batch = kBatch}));
  EXPECT_NE(order, data->order({.seed = 3, .epoch = 2, .global_batch = kBatch}));
  EXPECT_NE(order, data->order({.seed = 4, .epoch = 1, .global_batch = kBatch}));
  const auto plain = texts(false);
  EXPECT_EQ(plain->order({.seed = 3, .epoch = 1, .global_batch = kBatch}), plain->order({.seed = 3, .epoch = 1}));
  EXPECT_EQ(data->order({.seed = 3, .epoch = 1}), plain->order({.seed = 3, .epoch = 1})) << "without a global batch";

  std::int64_t spread = 0, ascending = 0, before = 0;
  const std::int64_t batches = kTexts / kBatch;
  for (std::int64_t b = 0; b < batches; ++b) {
    std::int64_t shortest = 100, longest = 0;
    for (std::int64_t i = b * kBatch; i < (b + 1) * kBatch; ++i) {
      const auto tokens = length(*data, order[static_cast<std::size_t>(i)]);
      shortest = std::min(shortest, tokens);
      longest = std::max(longest, tokens);
    }
    spread += longest - shortest;
    ascending += longest >= before;
    before = longest;
  }
  EXPECT_LT(spread, 5 * batches) << "of up to 61 tokens";
  EXPECT_TRUE(ascending > batches / 4 && ascending < 3 * batches / 4) << "the steps are in a random order";
  const std::set<std::int64_t> last(order.end() - kTexts % kBatch, order.end()), shuffled([&] {
    const auto all = plain->order({.seed = 3, .epoch = 1});
    return std::set<std::int64_t>(all.end() - kTexts % kBatch, all.end());
  }());
  EXPECT_EQ(last, shuffled) << "the incomplete step has any lengths";
}

TEST_F(TextBuckets, WindowsKeepTheOrderRandom) {
  std::vector<std::int64_t> shuffled(1000);
  for (std::int64_t i = 0; i < 1000; ++i) shuffled[static_cast<std::size_t>(i)] = i;
  const auto order = datasets::order_in_buckets(shuffled, {.seed = 1, .epoch = 0, .global_batch = 2},
                                                [](std::int64_t i) { return -i; });
  for (std::size_t i = 0; i < 1000; i += 2) {
    EXPECT_EQ(order[i] / 200, order[i + 1] / 200) << "a step is made within a window of 100 steps";
    EXPECT_EQ(order[i] - order[i + 1], 1);
  }
}

/// Every layout takes the same samples in a step, and pads less than without buckets.
TEST_F(TextBuckets, EveryLayoutHasTheSameSteps) {
  double padded[2] = {};
  for (const bool buckets : {false, true}) {
    const auto data = texts(buckets);
    std::int64_t elements = 0, padding = 0;
    const auto samples_of = [&](std::int64_t step, int ranks, std::int64_t micro) {
      std::set<std::int64_t> samples;
      for (int rank = 0; rank < ranks; ++rank) {
        LoaderOptions options{.global_batch = kBatch, .micro_batch = micro, .dp_rank = rank, .dp_size = ranks};
        options.seed = 5;
        options.shuffle = options.augment = true;
        Loader loader(data, options);
        loader.start_epoch(2, step);
        const auto batches = *loader.next();
        std::int64_t real = 0, all = 0;
        for (const auto& batch : batches.micro) {
          for (const auto id : values_of(batch.sample_ids)) samples.insert(id);
          real += batch.inputs["attention_mask"].sum().item<std::int64_t>() * 2;  // of the two inputs
          all += batch.inputs["input_ids"].numel() * 2;
        }
        EXPECT_EQ(batches.elements, all);
        EXPECT_EQ(batches.padding, all - real);
        if (ranks == 1 && micro == kBatch) {
          elements += batches.elements;
          padding += batches.padding;
        }
      }
      return samples;
    };
    for (const std::int64_t step : {0, 17, 125}) {
      const auto whole = samples_of(step, 1, kBatch);
      EXPECT_EQ(whole.size(), step == 125 ? 3U : 8U);
      EXPECT_EQ(samples_of(step, 1, 3), whole);
      EXPECT_EQ(samples_of(step, 2, 4), whole);
      EXPECT_EQ(samples_of(step, 3, 1), whole);
    }
    padded[buckets ? 1 : 0] = static_cast<double>(padding) / static_cast<double>(elements);
  }
  EXPECT_LT(padded[1], padded[0] / 2);
}

}  // namespace
}  // namespace trireme::data
