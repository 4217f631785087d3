// Images of every kind against those of transformers' ViTImageProcessor (tests/golden/make/make_pixels.py).
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"
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
    const auto image =
        resize(decode_image(read_bytes(folder + file), file).pixels, options.size.height, options.size.width);
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

constexpr const char* kFormats = TRIREME_SOURCE_DIR "/tests/golden/formats/";

// Every form of every format against Pillow's pixels (tests/golden/make/make_formats.py).
TEST(PixelsGolden, EqualPillowInEveryFormat) {
  const SafeTensorsFile expected(std::string(kFormats) + "expected.safetensors");
  const auto ends_with = [](const std::string& name, std::string_view ending) { return name.ends_with(ending); };
  std::int64_t pictures = 0;
  for (const auto& [name, entry] : expected.tensors()) {
    const bool turned = ends_with(name, ".turned"), over = ends_with(name, ".over");
    const auto file = turned || over ? name.substr(0, name.rfind('.')) : name;
    Decoding how{.turn = turned};
    if (over) how.background = {200, 10, 90};
    const auto image = decode_image(read_bytes(kFormats + file), file, how);
    const auto want = expected.read(name);
    ASSERT_EQ(image.pixels.sizes(), want.sizes()) << name;
    EXPECT_TRUE(image.pixels.is_contiguous());
    EXPECT_LE((image.pixels.to(at::kInt) - want.to(at::kInt)).abs().max().item<int>(), file == "inks.tif" ? 1 : 0)
        << name;
    EXPECT_EQ(image.has_orientation, expected.tensors().contains(file + ".turned")) << name;
    ++pictures;
  }
  EXPECT_EQ(pictures, 67);
}

// What lacks nothing but its end is whole; what lacks pixels is not.
TEST(PixelsGolden, ReadsAGifWithoutItsEnd) {
  auto bytes = read_bytes(std::string(kFormats) + "colours.gif");
  const auto whole = decode_image(bytes, "x").pixels;
  bytes.resize(bytes.size() - 2);
  EXPECT_TRUE(at::equal(decode_image(bytes, "x").pixels, whole));
  bytes.resize(bytes.size() - 20);
  EXPECT_THROW(static_cast<void>(decode_image(bytes, "x")), DataError);
}

// A JPEG in a TIFF is no less damaged than by itself.
TEST(PixelsGolden, RefusesDamageWithinATiff) {
  auto bytes = read_bytes(std::string(kFormats) + "jpeg.tif");
  const std::vector<unsigned char> scan{0xFF, 0xDA};
  const auto found = std::search(bytes.begin(), bytes.end(), scan.begin(), scan.end());
  ASSERT_NE(found, bytes.end());
  std::fill(found + 40, found + 100, 0x55);
  EXPECT_THROW(static_cast<void>(decode_image(bytes, "x")), DataError);
}

// What is damaged is an error or another picture, never a crash.
TEST(PixelsGolden, SurvivesDamageInEveryFormat) {
  std::int64_t refused = 0, read = 0;
  const auto attempt = [&](const std::vector<unsigned char>& bytes) {
    try {
      static_cast<void>(decode_image(bytes, "x", {.turn = true, .background = {{1, 2, 3}}}));
      ++read;
    } catch (const DataError&) {
      ++refused;
    }
  };
  for (const auto& entry : std::filesystem::directory_iterator(kFormats)) {
    if (entry.path().extension() == ".safetensors") continue;
    const auto bytes = read_bytes(entry.path().string());
    for (std::size_t size = 1; size < bytes.size(); size += 37)
      attempt({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)});
    const auto key = random::hash(entry.path().filename().string());
    for (std::uint64_t change = 0; change < 60; ++change) {
      auto changed = bytes;
      const auto draw = random::philox(key, 0, change);
      // Most changes hit the header, which says more.
      const auto span = change % 3 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 130);
      changed[draw.v[0] % span] = static_cast<unsigned char>(draw.v[1]);
      attempt(changed);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 300);
}

}  // namespace
}  // namespace trireme::data
