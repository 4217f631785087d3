// Mixup and CutMix: the distribution of the shares, the pixels and the labels.
#include "datasets/mix.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
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

/// A batch of images of these plain values, with the labels 0, 1, ...; the second and later ones are the partners of
/// those before.
data::Sample batch_of(const std::vector<double>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return {{{kPixelValues, at::tensor(values, at::kFloat).view({-1, 1, 1, 1}).expand({count, 3, 10, 14}).contiguous()}},
          {{nn::kLabels, at::arange(count, at::kLong)}}};
}

at::Tensor draws_of(const std::vector<Mix>& mixes) {
  std::vector<at::Tensor> rows;
  for (const auto& how : mixes) rows.push_back(as_tensor(how));
  return at::stack(rows);
}

TEST(Mix, PixelsAndLabelsHaveTheSameShares) {
  int cuts = 0;
  double cut_share = 0;
  constexpr int kSamples = 400;
  std::vector<Mix> mixes;
  std::vector<double> values;
  for (int i = 0; i <= kSamples; ++i) {
    mixes.push_back(draw_mix({.mixup = 0.5, .cutmix = 1}, 7, 0, i, 10, 14));
    values.push_back(i % 2 == 0 ? 1 : 0);
  }
  const auto batch = batch_of(values), before = batch_of(values);
  const auto mixed = mix(batch, draws_of(mixes));
  EXPECT_TRUE(at::equal(batch.inputs.front(), before.inputs.front())) << "the batch itself was changed";
  ASSERT_EQ(mixed.inputs.front().size(0), kSamples);
  EXPECT_TRUE(at::equal(mixed.targets[nn::kLabels], at::arange(0, kSamples, at::kLong)));
  EXPECT_TRUE(at::equal(mixed.targets[nn::kMixedLabels], at::arange(1, kSamples + 1, at::kLong)));
  for (int i = 0; i < kSamples; ++i) {
    const auto& how = mixes[static_cast<std::size_t>(i)];
    const auto pixels = mixed.inputs.front()[i];
    EXPECT_NEAR(pixels.mean().item<double>(), i % 2 == 0 ? how.share : 1 - how.share, 1e-5);
    if (how.cut) {
      auto want = at::full({3, 10, 14}, i % 2 == 0 ? 1.0 : 0.0);
      want.narrow(1, how.top, how.bottom - how.top).narrow(2, how.left, how.right - how.left).fill_(i % 2);
      EXPECT_TRUE(at::equal(pixels, want)) << i;
    }
    EXPECT_FLOAT_EQ(mixed.targets[nn::kLabelShares][i].item<float>(), static_cast<float>(how.share));
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
  auto batch = batch_of({1, 0});
  batch.inputs = {};
  const auto mixed = mix(batch, draws_of({how, {}}));
  EXPECT_TRUE(mixed.inputs.empty());
  EXPECT_EQ(mixed.targets[nn::kMixedLabels].item<std::int64_t>(), 1);
  EXPECT_FLOAT_EQ(mixed.targets[nn::kLabelShares].item<float>(), static_cast<float>(how.share));
}

}  // namespace
}  // namespace trireme::datasets
