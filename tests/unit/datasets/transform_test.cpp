// Resize, normalisation and the cache.
#include "datasets/transform.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "datasets/image_dataset.h"
#include "tests/unit/datasets/folder.h"

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
  const auto values = testing_tools::normalised(image, options);
  ASSERT_EQ(values.sizes(), (std::vector<std::int64_t>{3, 5, 7}));
  for (std::int64_t c = 0; c < 3; ++c) {
    const auto i = static_cast<std::size_t>(c);
    const auto want = (image.select(2, c).to(at::kDouble) / 255 - options.mean[i]) / options.std[i];
    EXPECT_TRUE(at::allclose(values[c].to(at::kDouble), want, 1e-6, 1e-6));
  }
  EXPECT_TRUE(at::equal(mirror(image), image.flip({1})));
}

TEST(Transform, ResizeKeepsAPlainColourAndTheMeanOfARamp) {
  EXPECT_TRUE(at::equal(resize(plain(40, 24, 9, 200, 31), 16, 16), plain(16, 16, 9, 200, 31)));
  EXPECT_TRUE(at::equal(resize(plain(7, 5, 9, 200, 31), 16, 12), plain(16, 12, 9, 200, 31)));
  const auto image = ramp(16, 16);
  EXPECT_TRUE(resize(image, 16, 16).is_same(image));
}

/// Counts how often pictures are loaded.
class Counting : public PixelSource {
 public:
  explicit Counting(std::int64_t side) : side_(side) {}
  [[nodiscard]] std::int64_t size() const override { return 8; }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return index % 2; }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    ++loads;
    return {plain(side_, side_, static_cast<unsigned char>(index), 0, 0)};
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

/// Pictures of a size that needs the central crop, with detail in them.
class Wide : public PixelSource {
 public:
  [[nodiscard]] std::int64_t size() const override { return 1; }
  [[nodiscard]] std::int64_t label(std::int64_t) const override { return 0; }
  [[nodiscard]] DecodedImage load(std::int64_t) const override { return {ramp(20, 31)}; }
};

// Every epoch sees the same, whether the picture comes from the cache or not; augmentation does not get into it.
TEST(PixelCache, HoldsWhatIsTheSameInEveryEpoch) {
  TransformOptions options;
  options.size = 12;
  options.resize_shorter = 16;
  const auto plain_input = testing_tools::normalised(fit(ramp(20, 31), options), options);
  for (const bool crop : {false, true}) {
    auto augmented = options;
    augmented.crop = crop;
    augmented.flip = true;
    augmented.rand_augment = 2;
    augmented.random_erasing = 0.5;
    const auto set_with = [&](std::int64_t budget) {
      return ImageDataset(std::make_shared<Wide>(), augmented, 1, std::make_shared<CacheBudget>(budget), false, Log(0));
    };
    auto cached = set_with(1 << 20), uncached = set_with(0);
    int changed = 0;
    for (int epoch = 0; epoch < 40; ++epoch) {
      const auto got = cached.get(0, epoch, true)->inputs.front();
      EXPECT_TRUE(at::equal(got, uncached.get(0, epoch, true)->inputs.front()));
      changed += at::equal(got, plain_input) ? 0 : 1;
      EXPECT_TRUE(at::equal(cached.get(0, epoch, false)->inputs.front(), plain_input));
    }
    EXPECT_GT(changed, 30);
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
