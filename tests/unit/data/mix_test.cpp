// Mixup and CutMix: the distribution of the shares, the pixels and the labels.
#include "datasets/mix.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "datasets/transform.h"

namespace trireme::datasets {
namespace {

// Beta(a, a) has the mean 1/2 and the variance 1 / (8 a + 4).
TEST(Mix, SharesFollowTheBetaDistribution) {
  for (const double alpha : {0.1, 0.2, 0.8, 1.0, 4.0}) {
    constexpr int kDraws = 20000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double draw = draw_beta(alpha, 1000 + static_cast<std::uint64_t>(i));
      ASSERT_TRUE(draw >= 0 && draw <= 1) << draw;
      sum += draw;
      squares += draw * draw;
    }
    const double mean = sum / kDraws, variance = squares / kDraws - mean * mean, expected = 1 / (8 * alpha + 4);
    EXPECT_NEAR(mean, 0.5, 4 * std::sqrt(expected / kDraws)) << alpha;
    EXPECT_NEAR(variance, expected, 0.04 * expected) << alpha;
  }
}

TEST(Mix, DependsOnSeedEpochAndSample) {
  const MixOptions options{.mixup = 1};
  const double share = draw_mix(options, 1, 2, 3, 8, 8).share;
  EXPECT_EQ(draw_mix(options, 1, 2, 3, 8, 8).share, share);
  EXPECT_NE(draw_mix(options, 2, 2, 3, 8, 8).share, share);
  EXPECT_NE(draw_mix(options, 1, 3, 3, 8, 8).share, share);
  EXPECT_NE(draw_mix(options, 1, 2, 4, 8, 8).share, share);
}

data::Sample sample_of(double value, std::int64_t label) {
  return {{{kPixelValues, at::full({3, 10, 14}, value)}}, data::class_label(label)};
}

TEST(Mix, PixelsAndLabelsHaveTheSameShares) {
  int cuts = 0;
  double cut_share = 0;
  constexpr int kSamples = 400;
  for (int i = 0; i < kSamples; ++i) {
    const auto how = draw_mix({.mixup = 0.5, .cutmix = 1}, 7, 0, i, 10, 14);
    auto sample = sample_of(1, 4);
    const auto other = sample_of(0, 2), before = sample_of(1, 4);
    const auto original = sample.inputs[kPixelValues];
    mix(sample, other, how);
    EXPECT_TRUE(at::equal(original, before.inputs[kPixelValues])) << "the data set's own pixels were changed";
    const auto& pixels = sample.inputs[kPixelValues];
    EXPECT_NEAR(pixels.mean().item<double>(), how.share, 1e-5);
    EXPECT_TRUE(!how.cut || (pixels.eq(0) | pixels.eq(1)).all().item<bool>());
    EXPECT_EQ(sample.targets[nn::kLabels].item<std::int64_t>(), 4);
    EXPECT_EQ(sample.targets[nn::kMixedLabels].item<std::int64_t>(), 2);
    EXPECT_FLOAT_EQ(sample.targets[nn::kLabelShares].item<float>(), static_cast<float>(how.share));
    cuts += how.cut ? 1 : 0;
    cut_share += how.cut ? how.share : 0;
  }
  EXPECT_NEAR(cuts, kSamples / 2, 40);  // each takes one of the two with probability 1/2
  EXPECT_GT(cut_share / cuts, 0.5);     // boxes that are clipped to the image leave more of it
  for (const auto& [options, is_cut] : {std::pair{MixOptions{.mixup = 1}, false}, {MixOptions{.cutmix = 1}, true}})
    for (int i = 0; i < 20; ++i) EXPECT_EQ(draw_mix(options, 7, 0, i, 10, 14).cut, is_cut);
}

// A rank that reads no pixels has the same labels and shares.
TEST(Mix, WorksWithoutPixels) {
  const auto how = draw_mix({.cutmix = 1}, 7, 0, 5, 10, 14);
  data::Sample sample{{}, data::class_label(1)};
  mix(sample, {{}, data::class_label(3)}, how);
  EXPECT_TRUE(sample.inputs.empty());
  EXPECT_EQ(sample.targets[nn::kMixedLabels].item<std::int64_t>(), 3);
}

}  // namespace
}  // namespace trireme::datasets
