// The random choices for a sample: what they depend on, their distributions, and the order in which they are applied.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "datasets/batch_transform.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::normalised;
using testing_tools::ramp;

TEST(Augmentation, IsAFunctionOfSeedEpochAndSample) {
  TransformOptions options;
  options.flip = options.crop = true;
  const auto draw = [&](std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
    const auto a = draw_augmentation(options, seed, epoch, sample, 300, 400);
    return std::make_tuple(a.flip, a.crop->top, a.crop->left, a.crop->height, a.crop->width);
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  std::set<std::tuple<bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t>> seen;
  for (int i = 0; i < 50; ++i) {
    seen.insert(draw(static_cast<std::uint64_t>(i), 0, 0));
    seen.insert(draw(0, i + 1, 0));
    seen.insert(draw(0, 0, i + 1));
  }
  EXPECT_GT(seen.size(), 145U);
  const auto none = draw_augmentation({}, 1, 2, 3, 300, 400);
  EXPECT_FALSE(none.flip || none.crop || none.erased || !none.operations.empty());
}

// A run that is resumed must go on with the draws of its first part.
TEST(Augmentation, FlipsAndCropsStayTheSame) {
  const struct {
    bool flip;
    std::int64_t top, left, height, width;
  } rows[] = {{false, 147, 107, 147, 176}, {true, 30, 54, 147, 159},   {false, 20, 6, 160, 180},
              {false, 115, 64, 170, 214},  {false, 23, 108, 202, 239}, {false, 56, 47, 238, 265}};
  TransformOptions options, more;
  options.flip = options.crop = true;
  more = options;
  more.rand_augment = 3;
  more.random_erasing = 1;
  for (std::int64_t sample = 0; sample < 6; ++sample)
    for (const auto& with : {options, more}) {
      const auto got = draw_augmentation(with, 5, 2, sample, 300, 400);
      const auto& want = rows[sample];
      EXPECT_EQ(got.flip, want.flip);
      EXPECT_EQ(std::make_tuple(got.crop->top, got.crop->left, got.crop->height, got.crop->width),
                std::make_tuple(want.top, want.left, want.height, want.width));
    }
}

TEST(Augmentation, DrawsOperationsAndDirectionsUniformly) {
  TransformOptions options;
  options.rand_augment = 2;
  options.rand_augment_magnitude = 7;
  const auto draw = [&](std::int64_t sample, std::int64_t epoch = 0, std::uint64_t seed = 5) {
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    for (const auto& operation : draw_augmentation(options, seed, epoch, sample, 30, 40).operations)
      out.emplace_back(operation.number, operation.magnitude);
    return out;
  };
  EXPECT_EQ(draw(3), draw(3));
  int same_pair = 0, as_in_other_epoch = 0, as_with_other_seed = 0;
  std::map<std::int64_t, int> drawn, negative;
  const int n = 7000;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto got = draw(i);
    ASSERT_EQ(got.size(), 2U);
    for (const auto& [number, magnitude] : got) {
      ++drawn[number];
      ASSERT_EQ(std::abs(magnitude), 7);
      negative[number] += magnitude < 0 ? 1 : 0;
    }
    same_pair += got[0].first == got[1].first ? 1 : 0;
    as_in_other_epoch += got == draw(i, 1) ? 1 : 0;
    as_with_other_seed += got == draw(i, 0, 6) ? 1 : 0;
  }
  ASSERT_EQ(drawn.size(), static_cast<std::size_t>(kRandAugmentOperations));
  for (const auto& [number, count] : drawn) {
    EXPECT_NEAR(count, 1000, 4 * std::sqrt(1000)) << name_of_operation(number);
    const bool has_direction = number >= 1 && number <= 9;  // from ShearX to Sharpness
    EXPECT_NEAR(negative[number], has_direction ? count / 2 : 0, has_direction ? 64 : 0) << name_of_operation(number);
  }
  EXPECT_NEAR(same_pair, n / 14, 4 * std::sqrt(n / 14));
  EXPECT_LT(as_in_other_epoch, n / 50);
  EXPECT_LT(as_with_other_seed, n / 50);
}

TEST(Augmentation, ErasesARectangleOfTheModelInput) {
  TransformOptions options;
  options.size = 40;
  options.random_erasing = 0.25;
  int erased = 0;
  double area = 0, top = 0;
  const int n = 8000;
  for (int i = 0; i < n; ++i) {
    const auto got = draw_augmentation(options, 5, 1, i, 300, 200).erased;
    if (!got) continue;
    ++erased;
    ASSERT_TRUE(got->top >= 0 && got->left >= 0 && got->top + got->height <= 40 && got->left + got->width <= 40);
    const double part = static_cast<double>(got->height * got->width) / 1600,
                 ratio = static_cast<double>(got->height) / static_cast<double>(got->width);
    ASSERT_TRUE(part > 0.015 && part < 0.35 && ratio > 0.25 && ratio < 4) << part << " " << ratio;
    area += part;
    top += static_cast<double>(got->top) / static_cast<double>(40 - got->height + 1);
  }
  EXPECT_NEAR(erased, n / 4, 4 * std::sqrt(n * 3 / 16));
  EXPECT_NEAR(area / erased, 0.172, 0.01);
  EXPECT_NEAR(top / erased, 0.5, 0.04);

  options.size = {20, 60};
  int beyond = 0;
  for (int i = 0; i < n; ++i) {
    const auto got = draw_augmentation(options, 5, 1, i, 300, 200).erased;
    if (!got) continue;
    ASSERT_TRUE(got->top + got->height <= 20 && got->left + got->width <= 60);
    beyond += got->left >= 20 ? 1 : 0;
  }
  EXPECT_GT(beyond, n / 16);

  const auto image = ramp(6, 6);
  Augmentation chance;
  chance.flip = true;
  chance.erased = Rectangle{1, 2, 3, 4};
  auto want = normalised(image, options).flip({2});
  want.narrow(1, 1, 3).narrow(2, 2, 4).fill_(0);
  const BatchTransform transform(options, 1);
  data::Sample sample{{{kPixelValues, augment(image, chance)}}, data::class_label(3)};
  transform.add_draws(sample, chance, 0, 0);
  for (auto* tensors : {&sample.inputs, &sample.targets})
    for (auto& [name, tensor] : *tensors) tensor = tensor.unsqueeze(0);
  const auto got = transform(sample, /*combine=*/false);
  ASSERT_EQ(got.inputs.names(), std::vector<std::string>{kPixelValues});
  EXPECT_TRUE(at::equal(got.inputs.front()[0], want));
}

// A shift by a whole number of pixels shows the order: the flip is before it, and 0 comes in from the left.
TEST(Augmentation, FlipsBeforeTheOperations) {
  const auto image = ramp(8, 8);
  Augmentation chance;
  chance.flip = true;
  chance.operations = {{3, 9}};
  ASSERT_STREQ(name_of_operation(3), "TranslateX");
  auto want = at::zeros_like(image);
  want.narrow(1, 1, 7).copy_(image.flip({1}).narrow(1, 0, 7));  // 150 / 331 * 8 * 9 / 30 = 1.09
  EXPECT_TRUE(at::equal(augment(image, chance), want));
}

TEST(Augmentation, CropsWithinTheGivenAreaAndRatio) {
  TransformOptions options;
  options.flip = options.crop = true;
  options.crop_low = 0.2;
  options.crop_high = 0.6;
  int flips = 0;
  double area = 0, log_ratio = 0, top = 0;
  const int n = 4000;
  for (int i = 0; i < n; ++i) {
    const auto a = draw_augmentation(options, 5, 1, i, 200, 200);
    ASSERT_TRUE(a.crop.has_value());
    const auto& box = *a.crop;
    ASSERT_TRUE(box.top >= 0 && box.left >= 0 && box.top + box.height <= 200 && box.left + box.width <= 200);
    const double part = static_cast<double>(box.height * box.width) / 40000,
                 ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    ASSERT_TRUE(part > 0.19 && part < 0.61 && ratio > 0.74 && ratio < 1.35) << part << " " << ratio;
    flips += a.flip ? 1 : 0;
    area += part / n;
    log_ratio += std::log(ratio) / n;
    top += static_cast<double>(box.top) / static_cast<double>(200 - box.height + 1) / n;
  }
  EXPECT_NEAR(flips, n / 2, 4 * std::sqrt(n) / 2);
  EXPECT_NEAR(area, 0.4, 0.01);
  EXPECT_NEAR(log_ratio, 0, 0.01);
  EXPECT_NEAR(top, 0.5, 0.02);
  // No draw fits this strip, so the crop is the largest part in the middle with a ratio of 4/3.
  options.crop_low = options.crop_high = 1;
  const auto strip = draw_augmentation(options, 5, 1, 0, 30, 1000).crop.value();
  EXPECT_EQ(std::make_tuple(strip.top, strip.left, strip.height, strip.width), std::make_tuple(0L, 480L, 30L, 40L));
}

}  // namespace
}  // namespace trireme::data
