// Resize, normalisation, augmentation and the cache.
#include "datasets/transform.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>
#include <tuple>

#include "datasets/image_dataset.h"
#include "tests/unit/data/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::label_of;
using testing_tools::plain;
using testing_tools::ramp;

TEST(Transform, NormalisesEachChannelAndFlips) {
  TransformOptions options;
  options.mean = {0.5, 0.25, 0.0};
  options.std = {0.5, 0.25, 2.0};
  const auto image = ramp(5, 7);
  const auto values = normalise(image, options, false);
  ASSERT_EQ(values.sizes(), (std::vector<std::int64_t>{3, 5, 7}));
  for (std::int64_t c = 0; c < 3; ++c) {
    const auto i = static_cast<std::size_t>(c);
    const auto want = (image.select(2, c).to(at::kDouble) / 255 - options.mean[i]) / options.std[i];
    EXPECT_TRUE(at::allclose(values[c].to(at::kDouble), want, 1e-6, 1e-6));
  }
  EXPECT_TRUE(at::equal(normalise(image, options, true), values.flip({2})));
}

TEST(Transform, ResizeKeepsAPlainColourAndTheMeanOfARamp) {
  EXPECT_TRUE(at::equal(resize(plain(40, 24, 9, 200, 31), 16), plain(16, 16, 9, 200, 31)));
  EXPECT_TRUE(at::equal(resize(plain(7, 5, 9, 200, 31), 16), plain(16, 16, 9, 200, 31)));
  const auto image = ramp(16, 16);
  EXPECT_TRUE(resize(image, 16).is_same(image));
}

TEST(Augmentation, IsAFunctionOfSeedEpochAndSample) {
  TransformOptions options;
  options.flip = options.crop = true;
  const auto draw = [&](std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
    const auto a = draw_augmentation(options, seed, epoch, sample, 300, 400);
    return std::make_tuple(a.flip, a.top, a.left, a.height, a.width);
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
  EXPECT_FALSE(none.flip || none.crop);
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
    ASSERT_TRUE(a.crop && a.top >= 0 && a.left >= 0 && a.top + a.height <= 200 && a.left + a.width <= 200);
    const double part = static_cast<double>(a.height * a.width) / 40000,
                 ratio = static_cast<double>(a.width) / static_cast<double>(a.height);
    ASSERT_TRUE(part > 0.19 && part < 0.61 && ratio > 0.74 && ratio < 1.35) << part << " " << ratio;
    flips += a.flip ? 1 : 0;
    area += part / n;
    log_ratio += std::log(ratio) / n;
    top += static_cast<double>(a.top) / static_cast<double>(200 - a.height + 1) / n;
  }
  EXPECT_NEAR(flips, n / 2, 4 * std::sqrt(n) / 2);
  EXPECT_NEAR(area, 0.4, 0.01);
  EXPECT_NEAR(log_ratio, 0, 0.01);
  EXPECT_NEAR(top, 0.5, 0.02);
  // No draw fits this strip, so the crop is the largest part in the middle with a ratio of 4/3.
  options.crop_low = options.crop_high = 1;
  const auto strip = draw_augmentation(options, 5, 1, 0, 30, 1000);
  EXPECT_EQ(std::make_tuple(strip.top, strip.left, strip.height, strip.width), std::make_tuple(0L, 480L, 30L, 40L));
}

/// Counts how often pictures are loaded.
class Counting : public PixelSource {
 public:
  explicit Counting(std::int64_t side) : side_(side) {}
  [[nodiscard]] std::int64_t size() const override { return 8; }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return index % 2; }
  [[nodiscard]] at::Tensor load(std::int64_t index) const override {
    ++loads;
    return plain(side_, side_, static_cast<unsigned char>(index), 0, 0);
  }
  mutable std::atomic<int> loads = 0;

 private:
  std::int64_t side_;
};

TEST(PixelCache, CachesWhatFitsAndFreesIt) {
  const Log log(0);
  TransformOptions small;
  small.size = 8;  // 192 bytes a picture after the resize, 768 before
  for (const bool cropped : {false, true}) {
    auto transform = small;
    transform.crop = cropped;
    const std::int64_t each = cropped ? 768 : 192;
    for (const std::int64_t fit : {0, 3, 8, 100}) {
      const auto source = std::make_shared<Counting>(16);
      const auto budget = std::make_shared<CacheBudget>(fit * each + 10);
      {
        ImageDataset set(source, transform, 1, budget, false, log);
        for (int epoch = 0; epoch < 3; ++epoch)
          for (std::int64_t i = 0; i < 8; ++i)
            EXPECT_NEAR(set.get(i, epoch, true)->inputs.front()[0][0][0].item<float>(),
                        (static_cast<float>(i) / 255 - 0.5) / 0.5, 1e-6);
        const auto cached = static_cast<int>(std::min<std::int64_t>(fit, 8));
        EXPECT_EQ(source->loads, 8 + 2 * (8 - cached));
        EXPECT_EQ(budget->left(), (fit - cached) * each + 10);
      }
      EXPECT_EQ(budget->left(), fit * each + 10);
    }
  }
}

TEST(PixelCache, IsThreadSafe) {
  const auto source = std::make_shared<Counting>(32);
  const auto budget = std::make_shared<CacheBudget>(5 * 32 * 32 * 3);
  TransformOptions transform;
  transform.size = 32;
  ImageDataset set(source, transform, 1, budget, false, Log(0));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::int64_t index = (i * 5 + t) % 8;
        const auto sample = set.get(index, 0, false);
        const auto want = static_cast<float>((static_cast<double>(index) / 255 - 0.5) / 0.5);
        if (label_of(*sample) != index % 2 || sample->inputs.front()[0][31][31].item<float>() != want) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(budget->left(), 0) << "five pictures fit, and five are kept";
}

}  // namespace
}  // namespace trireme::data
