// A ViT for images of any height and width: the order of its patches, and its position embeddings when the weights are
// for images of another size.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/safetensors_file.h"
#include "core/checkpoint/weights/weights.h"
#include "core/nn/parameters.h"
#include "models/registry.h"
#include "models/vit/kind.h"

namespace trireme {
namespace {

const std::string kGoldenVit = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/vit/";

/// The golden model's options, for images of this size.
models::vit::Options sized(const nn::ImageSize& size, models::vit::Options o = {}) {
  o.hidden_size = 24, o.num_layers = 2, o.num_heads = 3, o.intermediate_size = 48, o.patch_size = 4;
  models::vit::Kind().resolve(&o,
                              {.inputs = {{"pixel_values", at::kFloat, {3, size.height, size.width}}}, .classes = 5});
  return o;
}

std::unique_ptr<nn::Model> make_sized_vit(const models::vit::Options& options) {
  return models::vit::Kind().make(&options);
}

// A sequence of patches does not tell the shape of its image: the golden images of 4 x 4 patches, laid out as 2 x 8 and
// as 8 x 2, have the golden logits.
TEST(Vit, PatchesOfAnyGridAreReadRowByRow) {
  const SafeTensorsFile expected(kGoldenVit + "expected.safetensors");
  const auto pixels = expected.read("pixel_values"), logits = expected.read("logits");
  for (const std::int64_t columns : {2, 8}) {
    const auto rows = 16 / columns;
    const auto made = make_sized_vit(sized({4 * rows, 4 * columns}));
    auto& model = *made;
    nn::materialize(model, 1, at::kDouble, at::kCPU);
    checkpoint::load_weights(kGoldenVit + "model.safetensors", nn::parameters(model), "", Log(1),
                             checkpoint::other_tensors(model));
    const auto image = at::empty({pixels.size(0), 3, 4 * rows, 4 * columns}, at::kDouble);
    for (std::int64_t patch = 0; patch < 16; ++patch)
      image.narrow(2, patch / columns * 4, 4)
          .narrow(3, patch % columns * 4, 4)
          .copy_(pixels.narrow(2, patch / 4 * 4, 4).narrow(3, patch % 4 * 4, 4));
    const auto got = model.forward({image}, {}).at(0);
    EXPECT_LE((got - logits).norm().item<double>(), 1e-10 * logits.norm().item<double>()) << columns;
    EXPECT_EQ(model.tokens({}), 17);
    EXPECT_THROW(static_cast<void>(model.forward({pixels}, {})), Error) << "a square has the same number of pixels";
  }
}

const std::string kPositions = "vit.embeddings.position_embeddings";

// Weights for images of 16 x 16 pixels in models for 24 x 24 and 24 x 32: the grid of 4 x 4 positions becomes one of 6
// x 6 or 6 x 8.
TEST(Vit, InterpolatesPositionsToAnotherImageSize) {
  for (const auto& [size, golden] : {std::pair<nn::ImageSize, std::string>{24, "24px"}, {{24, 32}, "24x32px"}}) {
    const auto made = make_sized_vit(sized(size));
    auto& model = *made;
    nn::materialize(model, 1, at::kDouble, at::kCPU);
    const auto parameters = nn::parameters(model);
    checkpoint::load_weights(kGoldenVit + "model.safetensors", parameters, "", Log(1),
                             checkpoint::other_tensors(model));
    const SafeTensorsFile stored(kGoldenVit + "model.safetensors"),
        expected(kGoldenVit + "positions_" + golden + ".safetensors");
    for (const auto& p : parameters)
      EXPECT_TRUE(p.value.detach().allclose((p.name == kPositions ? expected : stored).read(p.name), 1e-12, 1e-12))
          << p.name << " " << golden;
  }
  // Other shapes do not fit, and are named.
  auto wide = sized(16);
  wide.hidden_size = 48;
  const auto made_other = make_sized_vit(wide);
  auto& other = *made_other;
  nn::materialize(other, 1, at::kDouble, at::kCPU);
  EXPECT_THROW(checkpoint::load_weights(kGoldenVit + "model.safetensors", nn::parameters(other), "", Log(1),
                                        checkpoint::other_tensors(other)),
               CheckpointError);
}

// The grid of stored positions comes from the weights' config.json: without it a grid of 16 could be 4 x 4, 2 x 8 or 8
// x 2.
TEST(Vit, InterpolatesPositionsFromTheGridOfTheConfig) {
  const auto kind = models::all_models().at("vit");
  const struct {
    const char* what;
    nlohmann::json stored;  ///< image_size in config.json; null: none
    nn::ImageSize size;     ///< of the model's images
    std::int64_t rows, columns;
  } rows[] = {
      {"to a square", {8, 32}, 24, 2, 8},
      {"to another shape", {8, 32}, {16, 20}, 2, 8},
      {"to the same number of patches", {8, 32}, {32, 8}, 2, 8},
      {"to a square with the same number of patches", {32, 8}, 16, 8, 2},
      {"unchanged", {8, 32}, {8, 32}, 0, 0},
      {"a nominal size that does not fit the tensor", 224, {8, 12}, 4, 4},
      {"a nominal size, and the tensor fits the model", 224, {8, 32}, 0, 0},
      {"no size in the file", nullptr, {8, 12}, 4, 4},
  };
  for (const auto& row : rows) {
    models::vit::Options options;
    ASSERT_TRUE(kind->from_hf(&options,
                              {{"model_type", "vit"},
                               {"hidden_size", 24},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 3},
                               {"intermediate_size", 48},
                               {"patch_size", 4},
                               {"image_size", row.stored}},
                              "weights/config.json"));
    const auto made = make_sized_vit(sized(row.size, options));
    const auto& model = *made;
    const auto stored = at::rand({1, 17, 24}, at::kDouble);
    const auto to_rows = row.size.height / 4, to_columns = row.size.width / 4;
    const auto conversion = model.conversion(kPositions, {1, 17, 24}, {1, to_rows * to_columns + 1, 24});
    ASSERT_EQ(static_cast<bool>(conversion), row.rows > 0) << row.what;
    if (!conversion) continue;
    const auto grid = stored.narrow(1, 1, 16).view({1, row.rows, row.columns, 24}).permute({0, 3, 1, 2});
    const auto scaled = at::upsample_bicubic2d(grid, at::IntArrayRef({to_rows, to_columns}), false, std::nullopt);
    const auto want = at::cat({stored.narrow(1, 0, 1), scaled.flatten(2).transpose(1, 2)}, 1);
    EXPECT_TRUE(conversion.apply(stored).allclose(want, 1e-12, 1e-12)) << row.what;
  }
}

}  // namespace
}  // namespace trireme
