// RandAugment's operations, and the resize with a central crop, against torchvision's
// (tests/golden/make/make_augment.py).
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/safetensors_file.h"
#include "datasets/rand_augment.h"
#include "datasets/transform.h"

namespace trireme::data {
namespace {

using namespace datasets;

const SafeTensorsFile& expected_augment() {
  static const SafeTensorsFile file(TRIREME_SOURCE_DIR "/tests/golden/augment/expected.safetensors");
  return file;
}

int largest_difference(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_EQ(got.sizes(), want.sizes());
  return (got.to(at::kInt) - want.to(at::kInt)).abs().max().item<int>();
}

TEST(AugmentGolden, EveryOperationEqualsTorchvisions) {
  const struct {
    const char* operation;
    bool has_direction, has_magnitude;
    int tolerance;  // grey levels: where torchvision mixes in float32, another order of the sums can change the last
                    // one
  } rows[] = {{"Identity", false, false, 0},     {"ShearX", true, true, 0},     {"ShearY", true, true, 0},
              {"TranslateX", true, true, 0},     {"TranslateY", true, true, 0}, {"Rotate", true, true, 0},
              {"Brightness", true, true, 0},     {"Color", true, true, 1},      {"Contrast", true, true, 1},
              {"Sharpness", true, true, 1},      {"Posterize", false, true, 0}, {"Solarize", false, true, 0},
              {"AutoContrast", false, false, 0}, {"Equalize", false, false, 0}};
  ASSERT_EQ(std::size(rows), static_cast<std::size_t>(kRandAugmentOperations));
  for (std::int64_t number = 0; number < kRandAugmentOperations; ++number) {
    const auto& row = rows[number];
    ASSERT_STREQ(name_of_operation(number), row.operation);
    const auto check = [&](const std::string& name, std::int64_t magnitude) {
      const auto image = expected_augment().read(name);
      const auto before = image.clone();
      const auto got = apply_operation(image, {number, magnitude});
      const auto key = fmt::format("{}.{}.{}", name, row.operation, magnitude);
      EXPECT_LE(largest_difference(got, expected_augment().read(key)), row.tolerance) << key;
      EXPECT_EQ(largest_difference(image, before), 0) << key << " changes an image that may be in the cache";
    };
    check("grey", row.has_magnitude ? 9 : 0);
    if (row.has_magnitude) {
      check("rgb", row.has_direction ? -9 : 9);
      check("rgb", 23);
    } else {
      check("rgb", 0);
    }
  }
}

TEST(AugmentGolden, ShorterSideAndCentralCropEqualTorchvisions) {
  const struct {
    const char* image;
    std::int64_t shorter;
  } rows[] = {{"tall", 20}, {"tall", 16}, {"wide", 17}, {"wide", 19}, {"wide", 40}};
  for (const auto& row : rows) {
    TransformOptions options;
    options.size = 16;
    options.resize_shorter = row.shorter;
    const auto got = fit(expected_augment().read(row.image), options);
    const auto key = fmt::format("{}.{}", row.image, row.shorter);
    EXPECT_LE(largest_difference(got, expected_augment().read(key)), 1) << key;
    EXPECT_EQ(got.storage().nbytes(), got.nbytes()) << "the cache would hold more than it counts";
  }
}

}  // namespace
}  // namespace trireme::data
