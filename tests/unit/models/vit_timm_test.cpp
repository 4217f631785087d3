// A Vision Transformer from files with timm's names, which DeiT's own files have too: the same values as from Hugging
// Face's names, in every slice; the config.json of timm; what is refused.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/base/safetensors_file.h"
#include "core/checkpoint/weights/weights.h"
#include "core/nn/parameters.h"
#include "models/vit/kind.h"
#include "tests/unit/checkpoint/folder.h"
#include "tests/unit/checkpoint/pickles.h"

namespace trireme::checkpoint {
namespace {

const std::string kViT = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/vit/";

std::unique_ptr<nn::Model> golden_model() {
  models::vit::Options o;
  o.hidden_size = 24, o.num_layers = 2, o.num_heads = 3, o.intermediate_size = 48, o.patch_size = 4;
  models::vit::Kind().resolve(&o, {.inputs = {{"pixel_values", at::kFloat, {3, 16, 16}}}, .classes = 5});
  return models::vit::Kind().make(&o);
}

/// The golden weights under timm's names.
std::vector<NamedValue> in_timms_names() {
  const SafeTensorsFile golden(kViT + "model.safetensors");
  std::vector<NamedValue> out{{"cls_token", golden.read("vit.embeddings.cls_token")},
                              {"pos_embed", golden.read("vit.embeddings.position_embeddings")}};
  for (const std::string kind : {".weight", ".bias"}) {
    const auto add = [&](const std::string& timm, const std::string& name) {
      out.push_back({timm + kind, golden.read(name + kind)});
    };
    add("patch_embed.proj", "vit.embeddings.patch_embeddings.projection");
    add("norm", "vit.layernorm");
    add("head", "classifier");
    for (const std::string i : {"0", "1"}) {
      const auto layer = "vit.encoder.layer." + i + ".", block = "blocks." + i + ".";
      const auto part = [&](const char* name) { return golden.read(layer + "attention.attention." + name + kind); };
      out.push_back({block + "attn.qkv" + kind, at::cat({part("query"), part("key"), part("value")})});
      add(block + "norm1", layer + "layernorm_before");
      add(block + "norm2", layer + "layernorm_after");
      add(block + "attn.proj", layer + "attention.output.dense");
      add(block + "mlp.fc1", layer + "intermediate.dense");
      add(block + "mlp.fc2", layer + "output.dense");
    }
  }
  return out;
}

/// The parameter as a rank of some layout holds it: whole, the rows or columns of a tensor-parallel rank, a flat range.
std::vector<shard::Placement> placements_of(const std::string& name, const std::vector<std::int64_t>& shape) {
  using shard::Placement;
  std::vector<Placement> out{Placement::whole(name, shape)};
  for (std::int64_t dim = 0; dim < std::min<std::int64_t>(2, static_cast<std::int64_t>(shape.size())); ++dim) {
    const auto size = shape[static_cast<std::size_t>(dim)];
    auto cut = Placement::whole(name, shape);
    cut.cut(dim, {{0, size / 4}, {size / 2, size}});
    out.push_back(cut);
  }
  if (shape.size() > 1)
    out.push_back(
        Placement(out[1]).cut(1, {shard::split(shape[1], 2, 0)}));  // of two axes, such as experts' and outputs'
  for (auto cut : std::vector(out)) {
    cut.flat = shard::Range{cut.local_numel() / 3, cut.local_numel() - 1};
    out.push_back(cut);
  }
  return out;
}

TEST(VitTimm, EverySliceIsThatOfHuggingFacesNames) {
  const TestFolder folder;
  auto tensors = in_timms_names();
  write_safetensors(folder / "timm.safetensors", tensors);
  write_state_dict(folder / "deit.pth", tensors);
  for (auto& tensor : tensors) tensor.name.insert(0, "module.");
  write_state_dict(folder / "ddp.pth", tensors);
  const SafeTensorsFile golden(kViT + "model.safetensors");
  const auto model = golden_model();
  std::vector<nn::Parameter> parameters;
  for (const auto& declared : nn::declarations(*model))
    for (auto& placement : placements_of(declared.name, declared.placement.shape))
      parameters.push_back({declared.name, at::empty(placement.local_shape(), at::kDouble), placement});
  EXPECT_GT(parameters.size(), 100U);
  for (const auto* file : {"timm.safetensors", "deit.pth", "ddp.pth"}) {
    for (auto& p : parameters) p.value.fill_(-1);
    load_weights(folder / file, parameters, "", Log(1), other_tensors(*model));
    for (const auto& p : parameters)
      EXPECT_TRUE(at::equal(p.value, p.placement.slice(golden.read(p.name)))) << file << " " << p.name;
  }
}

TEST(VitTimm, APipelineStageReadsItsBlocks) {
  const TestFolder folder;
  write_state_dict(folder / "deit.pth", in_timms_names());
  const SafeTensorsFile golden(kViT + "model.safetensors");
  for (const std::vector<std::size_t>& blocks : {std::vector<std::size_t>{0, 1}, {2, 3}}) {
    const auto model = golden_model();
    model->keep_stage_blocks(blocks, "pp");
    nn::materialize(*model, 1, at::kDouble, at::kCPU);
    const auto parameters = nn::parameters(*model);
    load_weights(folder / "deit.pth", parameters, "classifier.", Log(1), other_tensors(*model));
    EXPECT_LT(parameters.size(), golden.tensors().size());
    for (const auto& p : parameters) EXPECT_TRUE(at::equal(p.value.detach(), golden.read(p.name))) << p.name;
  }
}

TEST(VitTimm, AHeadIsFoundByEitherName) {
  const TestFolder folder;
  const auto model = golden_model();
  auto tensors = in_timms_names();
  write_safetensors(folder / "w.safetensors", tensors);
  EXPECT_TRUE(has_head(folder / "w.safetensors", *model, "classifier."));
  EXPECT_TRUE(has_head(kViT, *model, "classifier."));
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name.starts_with("head."); });
  write_safetensors(folder / "w.safetensors", tensors);
  EXPECT_FALSE(has_head(folder / "w.safetensors", *model, "classifier."));
}

TEST(VitTimm, Refusals) {
  const TestFolder folder;
  const auto one = at::full({1, 1, 24}, 1.0);
  struct Row {
    std::string remove;
    NamedValue add;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows{
      {"", {"dist_token", one}, {"w.pth: the tensor \"dist_token\" is of a distilled DeiT", "use the DeiT without"}},
      {"", {"head_dist.weight", one}, {"\"head_dist.weight\" is of a distilled DeiT"}},
      {"", {"blocks.1.ls2.gamma", one}, {"\"blocks.1.ls2.gamma\" is of a variant of the Vision Transformer"}},
      {"",
       {"blocks.2.attn.qkv.bias", one},
       {"1 tensor of layers that this model does not have: blocks.2.attn.qkv.bias"}},
      {"blocks.1.attn.qkv.bias",
       {"other", one},
       {"3 tensors missing: vit.encoder.layer.1.attention.attention.query.bias (blocks.1.attn.qkv.bias), "}},
      {"blocks.0.attn.qkv.weight",
       {"blocks.0.attn.qkv.weight", at::full({48, 24}, 1.0)},
       {"3 do not fit: vit.encoder.layer.0.attention.attention.query.weight [24, 24] (the file has "
        "blocks.0.attn.qkv.weight [48, 24] for 3 such tensors)"}}};
  for (const auto& [remove, add, says] : rows) {
    auto tensors = in_timms_names();
    std::erase_if(tensors, [&, name = remove](const auto& tensor) { return tensor.name == name; });
    tensors.push_back(add);
    write_state_dict(folder / "w.pth", tensors);
    const auto model = golden_model();
    nn::materialize(*model, 1, at::kDouble, at::kCPU);
    expect_error([&] { load_weights(folder / "w.pth", nn::parameters(*model), "", Log(1), other_tensors(*model)); },
                 says);
  }
}

TEST(VitTimm, ConfigJsonOfAnArchitecture) {
  const models::vit::Kind kind;
  const auto read = [&](models::vit::Options& options, const char* name) {
    return kind.from_hf(&options, {{"architecture", name}, {"num_classes", 5}}, "a/config.json");
  };
  models::vit::Options small;
  ASSERT_TRUE(read(small, "deit_small_patch16_224"));
  EXPECT_EQ(*small.hidden_size, 384);
  EXPECT_EQ(*small.num_layers, 12);
  EXPECT_EQ(*small.num_heads, 6);
  EXPECT_EQ(*small.intermediate_size, 1536);
  EXPECT_EQ(*small.patch_size, 16);
  EXPECT_EQ(*small.layer_norm_eps, 1e-6);
  models::vit::Options large;
  ASSERT_TRUE(read(large, "vit_large_patch32_384"));
  EXPECT_EQ(*large.num_layers, 24);
  EXPECT_EQ(*large.patch_size, 32);
  models::vit::Options other;
  EXPECT_FALSE(read(other, "resnet18"));
  const auto refused = [&](models::vit::Options options, const char* name, const std::string& says) {
    try {
      read(options, name);
      ADD_FAILURE() << "accepted " << name;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  for (const auto* name : {"deit_tiny_distilled_patch16_224", "vit_giant_patch14_224", "vit_tiny_patch_224"})
    refused({}, name, fmt::format("a/config.json is for \"{}\"; of timm's Vision Transformers, ", name));
  models::vit::Options user;
  user.num_layers = 6;
  refused(user, "vit_tiny_patch16_224", "num_layers = 6, but a/config.json says num_hidden_layers = 12");
}

/// A config.json of Hugging Face's keys, the prepared images beside it, and that of timm made of them.
TEST(VitTimm, ConfigJsonForTimm) {
  const models::vit::Kind kind;
  models::vit::Options o;
  // 23 * (16 / 23.) is below 16, and timm rounds down.
  o.hidden_size = 23, o.num_layers = 2, o.num_heads = 1, o.intermediate_size = 16, o.patch_size = 4;
  o.hidden_act = "gelu_new", o.qkv_bias = false, o.layer_norm_eps = 1e-6;
  const nn::DataSpec data{
      .inputs = {{"pixel_values", at::kFloat, {1, 16, 24}}}, .classes = 2, .class_names = {"cat", "dog"}};
  kind.resolve(&o, data);
  const auto formats = kind.other_formats();
  ASSERT_EQ(formats.size(), 1U);
  const auto written = formats[0].config(
      kind.to_hf(&o), {{"size", {{"height", 16}, {"width", 24}}}, {"image_mean", {0.5}}, {"image_std", {0.25}}});
  auto ratio = written.at("model_args").at("mlp_ratio").get<double>();
  EXPECT_EQ(static_cast<int>(23 * ratio), 16);
  EXPECT_NEAR(ratio, 16 / 23., 1e-15);
  auto rounded = written;
  rounded["model_args"]["mlp_ratio"] = 0.7;
  EXPECT_EQ(rounded, nlohmann::json::parse(R"({
    "architecture": "vit_base_patch16_224", "num_classes": 2, "num_features": 23, "num_channels": 1,
    "global_pool": "token", "id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1},
    "model_args": {"img_size": [16, 24], "patch_size": 4, "in_chans": 1, "embed_dim": 23, "depth": 2, "num_heads": 1,
                   "mlp_ratio": 0.7, "qkv_bias": false, "act_layer": "gelu_tanh"},
    "pretrained_cfg": {"num_classes": 2, "first_conv": "patch_embed.proj", "classifier": "head",
                       "label_names": ["cat", "dog"], "fixed_input_size": true, "input_size": [1, 16, 24],
                       "mean": [0.5], "std": [0.25], "interpolation": "bilinear", "crop_pct": 1.0,
                       "crop_mode": "squash"}})"));
  models::vit::Options again;
  ASSERT_TRUE(kind.from_hf(&again, written, "a/config.json"));
  kind.resolve(&again, data);
  auto expected = kind.to_hf(&o);
  expected["hidden_act"] = "gelu_pytorch_tanh";  // another name of the same
  EXPECT_EQ(kind.to_hf(&again), expected);

  auto other = written;
  other["model_args"]["class_token"] = false;
  const auto refusal = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([&] { kind.from_hf(&again, other, "a/config.json"); }),
            "model.weights: a/config.json: model_args has class_token = false, which this model does not have");
  o.layer_norm_eps = 1e-12;
  EXPECT_EQ(
      refusal([&] { formats[0].config(kind.to_hf(&o), nullptr); }),
      "this model has layer_norm_eps = 1e-12, but timm's Vision Transformers always compute with 1e-06; train with "
      "model.layer_norm_eps = 1e-06");
}

}  // namespace
}  // namespace trireme::checkpoint
