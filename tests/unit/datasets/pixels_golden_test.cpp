// Images of every kind against those of transformers' ViTImageProcessor (tests/golden/make/make_pixels.py).
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/base/safetensors_file.h"
#include "datasets/image.h"
#include "datasets/transform.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

TEST(PixelsGolden, EqualTransformersWithinOneGreyLevel) {
  const std::string folder = TRIREME_SOURCE_DIR "/tests/golden/pixels/";
  const SafeTensorsFile expected(folder + "expected.safetensors");
  TransformOptions options;
  options.size = 32;
  std::int64_t values = 0, equal = 0, pictures = 0;
  for (const auto& [name, entry] : expected.tensors()) {
    const auto file = name.substr(0, name.rfind('.'));
    const auto image = resize(decode_image(read_bytes(folder + file), file), options.size.height, options.size.width);
    const auto want = expected.read(name);
    const auto off = (image.to(at::kInt) - want.to(at::kInt)).abs();
    EXPECT_LE(off.max().item<int>(), 1) << name << ", mean difference " << off.to(at::kFloat).mean().item<float>();
    // Normalisation, the last step, is exact to float32.
    const auto pixel_values = (want.permute({2, 0, 1}).to(at::kDouble) / 255 - 0.5) / 0.5;
    EXPECT_LE((testing_tools::normalised(want, options).to(at::kDouble) - pixel_values).abs().max().item<double>(),
              1e-6)
        << name;
    values += off.numel();
    equal += (off == 0).sum().item<std::int64_t>();
    ++pictures;
  }
  EXPECT_EQ(pictures, 28);
  EXPECT_GT(static_cast<double>(equal), 0.95 * static_cast<double>(values));
}

}  // namespace
}  // namespace trireme::data
