// Images that are not square: how they are resized and cut, and their way through a data set.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "datasets/image.h"
#include "datasets/transform.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::Folder;
using testing_tools::normalised;
using testing_tools::open_set;
using testing_tools::ramp;
using testing_tools::training_images;

// The whole image to another ratio, or its shorter side and the middle of the other; a half offset goes to the even
// side.
TEST(ImageSize, ImagesAreFitToAnyHeightAndWidth) {
  const struct {
    std::int64_t height, width;  ///< of the image
    nn::ImageSize size;
    std::optional<std::int64_t> shorter;
    std::int64_t resized_height, resized_width, top, left;
  } rows[] = {
      {20, 31, {12, 16}, std::nullopt, 12, 16, 0, 0}, {31, 20, {12, 16}, std::nullopt, 12, 16, 0, 0},
      {9, 9, {24, 10}, std::nullopt, 24, 10, 0, 0},   {20, 31, {12, 16}, 16, 16, 24, 2, 4},
      {31, 20, {12, 16}, 16, 24, 16, 6, 0},           {20, 31, {11, 16}, 16, 16, 24, 2, 4},
      {31, 20, {11, 16}, 18, 27, 18, 8, 1},           {20, 20, {16, 9}, 16, 16, 16, 0, 4},
  };
  for (const auto& row : rows) {
    TransformOptions options;
    options.size = row.size;
    options.resize_shorter = row.shorter;
    const auto image = ramp(row.height, row.width);
    const auto got = fit(image, options);
    const auto whole =
        at::_upsample_bilinear2d_aa(image.permute({2, 0, 1}).unsqueeze(0).to(at::kDouble),
                                    at::IntArrayRef({row.resized_height, row.resized_width}), false, std::nullopt)
            .squeeze(0)
            .permute({1, 2, 0});
    ASSERT_EQ(got.sizes(), (std::vector<std::int64_t>{row.size.height, row.size.width, 3}));
    const auto part = whole.narrow(0, row.top, row.size.height).narrow(1, row.left, row.size.width);
    EXPECT_LE((got.to(at::kDouble) - part).abs().max().item<double>(), 1.01)  // levels: each pass rounds
        << row.height << " x " << row.width << " to " << row.size.text();
  }
}

// From the options to the batch and to the exported file, every augmentation included.
TEST(ImageSize, GoesFromTheOptionsToTheExport) {
  const Folder folder;
  for (const auto* split : {"train", "validation"}) {
    std::filesystem::create_directories(folder.path(split) + "/a");
    for (const auto* name : {"1", "2", "3", "4"}) write_png(folder.path(split) + "/a/" + name + ".png", ramp(20, 31));
  }
  FolderOptions options;
  options.path = folder.path();
  options.image_size = {6, 9};
  for (const auto& shorter : {std::optional<std::int64_t>(), std::optional<std::int64_t>(11)}) {
    options.resize_shorter = shorter;
    TransformOptions transform;
    transform.size = {6, 9};
    transform.resize_shorter = shorter;
    const auto plain_sets = open_set(options, 1, Log(1));
    EXPECT_EQ(plain_sets.info.about, "6 x 9 px");
    EXPECT_EQ(plain_sets.info.spec.input("pixel_values")->shape, (std::vector<std::int64_t>{3, 6, 9}));
    EXPECT_TRUE(training_images(plain_sets.train, 0)[0]
                    .to(at::kDouble)
                    .allclose(normalised(fit(ramp(20, 31), transform)), 1e-6, 1e-6));
    const auto written = nlohmann::json::parse(plain_sets.info.files.at("preprocessor_config.json"));
    EXPECT_EQ(written[shorter ? "crop_size" : "size"], (nlohmann::json{{"height", 6}, {"width", 9}}));
    auto augmented = options;
    augmented.random_resized_crop = augmented.flip = true;
    augmented.rand_augment = 2;
    augmented.random_erasing = 1;
    augmented.mixup = augmented.cutmix = 1;
    const auto sets = open_set(augmented, 1, Log(1));
    for (int epoch = 0; epoch < 20; ++epoch)
      EXPECT_EQ(training_images(sets.train, epoch).sizes(), (std::vector<std::int64_t>{4, 3, 6, 9}));
  }
}

}  // namespace
}  // namespace trireme::data
