// ViT against Hugging Face's, its options, and what every layout needs of it: a batch of no samples, recompute.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/base/safetensors_file.h"
#include "core/checkpoint/weights/weights.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/layers/criterion.h"
#include "core/nn/parameters.h"
#include "models/registry.h"
#include "models/vit/kind.h"

namespace trireme {
namespace {

using models::vit::Options;

const std::string kGolden = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/vit/";

Options tiny(double dropout = 0, double attention_dropout = 0) {
  Options o;
  o.hidden_size = 24, o.num_layers = 2, o.num_heads = 3, o.intermediate_size = 48, o.patch_size = 4;
  o.dropout = dropout, o.attention_dropout = attention_dropout, o.initializer_range = 0.2;
  models::vit::Kind().resolve(&o, {.inputs = {{"pixel_values", at::kFloat, {3, 16, 16}}}, .classes = 5});
  return o;
}

std::unique_ptr<nn::Model> make_vit(const Options& options) { return models::vit::Kind().make(&options); }

std::map<std::string, at::Tensor> gradients(nn::Model& model) {
  std::map<std::string, at::Tensor> out;
  for (const auto& p : nn::parameters(model)) out[p.name] = p.value.grad();
  return out;
}

double two_norm(const at::Tensor& t) { return t.norm().item<double>(); }

// Contract C1's measure: |g - ref| <= bound * max(|ref|, 1e-6 * global norm).
void expect_close(const std::map<std::string, at::Tensor>& got, const std::map<std::string, at::Tensor>& want,
                  double bound) {
  double squares = 0;
  for (const auto& [name, value] : want) squares += two_norm(value) * two_norm(value);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    ASSERT_TRUE(got.at(name).defined()) << name;
    EXPECT_LE(two_norm(got.at(name) - value), bound * std::max(two_norm(value), 1e-6 * std::sqrt(squares))) << name;
  }
}

class VitGolden : public testing::TestWithParam<bool> {};

TEST_P(VitGolden, LogitsLossAndGradientsEqualHuggingFace) {
  const SafeTensorsFile weights(kGolden + "model.safetensors"), expected(kGolden + "expected.safetensors");
  const auto made = make_vit(tiny());
  auto& model = *made;
  nn::materialize(model, 1, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(model);
  ASSERT_EQ(parameters.size(), weights.tensors().size());
  std::map<std::string, at::Tensor> want;
  for (auto& p : parameters) {
    p.value.data().copy_(weights.read(p.name));
    want[p.name] = expected.read("grad." + p.name);
  }
  const nn::Context context{.training = true};
  const auto labels = expected.read("labels");
  const auto logits =
      model.forward({expected.read("pixel_values")}, context, GetParam() ? nn::RunBlock(nn::recompute) : nn::RunBlock())
          .at(0);
  const auto loss = nn::cross_entropy(logits, labels);
  (loss / 3).backward();
  EXPECT_LE(two_norm(logits - expected.read("logits")), 1e-10 * two_norm(expected.read("logits")));
  EXPECT_NEAR(loss.item<double>() / 3, expected.read("loss").item<double>(), 1e-10);
  expect_close(gradients(model), want, 1e-10);
}
INSTANTIATE_TEST_SUITE_P(Recompute, VitGolden, testing::Bool());

nn::Context training(std::initializer_list<std::int64_t> ids) {
  return {.training = true, .seed = 4, .step = 7, .sample_ids = at::tensor(std::vector<std::int64_t>(ids))};
}

/// Gradients of the loss, summed over the samples.
std::map<std::string, at::Tensor> run(nn::Model& model, const at::Tensor& pixels, const at::Tensor& labels,
                                      const nn::Context& context, bool recompute) {
  for (auto& p : nn::parameters(model)) p.value.mutable_grad() = at::Tensor();
  nn::cross_entropy(model.forward({pixels}, context, recompute ? nn::RunBlock(nn::recompute) : nn::RunBlock()).at(0),
                    labels)
      .backward();
  return gradients(model);
}

class VitDropout : public testing::TestWithParam<std::pair<double, double>> {};

TEST_P(VitDropout, RecomputeAndAnySplitOfTheBatchGiveTheSameGradients) {
  const auto [dropout, attention_dropout] = GetParam();
  const auto made = make_vit(tiny(dropout, attention_dropout));
  auto& model = *made;
  nn::materialize(model, 1, at::kDouble, at::kCPU);
  const auto pixels = at::rand({4, 3, 16, 16}, at::kDouble);
  const auto labels = at::tensor(std::vector<std::int64_t>{1, 4, 0, 3});
  const auto plain = run(model, pixels, labels, training({8, 3, 5, 1}), false);
  expect_close(run(model, pixels, labels, training({8, 3, 5, 1}), true), plain, 1e-9);

  auto sum = run(model, pixels.narrow(0, 0, 1), labels.narrow(0, 0, 1), training({8}), false);
  const auto rest = run(model, pixels.narrow(0, 1, 3), labels.narrow(0, 1, 3), training({3, 5, 1}), true);
  for (auto& [name, value] : sum) value = value + rest.at(name);
  expect_close(sum, plain, 1e-9);
  // The masks have an effect: other sample ids give other gradients.
  if (dropout + attention_dropout > 0) {
    const auto other = run(model, pixels, labels, training({8, 3, 5, 2}), false);
    EXPECT_GE(two_norm(other.at("classifier.weight") - plain.at("classifier.weight")), 1e-6);
  }
}
INSTANTIATE_TEST_SUITE_P(Rates, VitDropout,
                         testing::Values(std::pair{0.0, 0.0}, std::pair{0.2, 0.0}, std::pair{0.0, 0.2},
                                         std::pair{0.1, 0.3}));

TEST(Vit, ABatchOfNoSamplesHasZeroGradients) {
  for (const bool recompute : {false, true})
    for (const double dropout : {0.0, 0.1})
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        const auto made = make_vit(tiny(dropout, dropout));
        auto& model = *made;
        nn::materialize(model, 1, dtype, at::kCPU);
        const auto got =
            run(model, at::empty({0, 3, 16, 16}, dtype), at::empty({0}, at::kLong), training({}), recompute);
        for (const auto& [name, value] : got) {
          ASSERT_TRUE(value.defined()) << name;
          EXPECT_EQ(two_norm(value), 0) << name;
        }
      }
}

TEST(Vit, BlocksPathsAndSizes) {
  const std::map<std::string, std::int64_t> counts = {
      {"tiny", 5'526'346}, {"small", 21'669'514}, {"base", 85'806'346}, {"large", 303'311'882}};
  for (const auto& [size, count] : counts) {
    Options o;
    o.size = size;
    models::vit::Kind().resolve(&o, {.inputs = {{"pixel_values", at::kFloat, {3, 224, 224}}}, .classes = 10});
    const auto made = make_vit(o);  // a large model, but without memory
    auto& model = *made;
    EXPECT_EQ(nn::parameter_count(model), count) << size;
    EXPECT_EQ(model.blocks().size(), static_cast<std::size_t>(*o.num_layers) + 2);
    std::set<std::string> paths;
    for (const auto& module : model.modules(false)) {
      const auto* layer = dynamic_cast<nn::Layer*>(module.get());
      if (layer != nullptr) {
        EXPECT_TRUE(paths.insert(layer->path()).second);
      }
    }
    EXPECT_EQ(paths.count("vit.encoder.layer.0.attention.attention.query"), 1U);
    EXPECT_EQ(model.blocks().front()->path(), "vit.embeddings");
    EXPECT_EQ(model.blocks().back()->path(), "head");
  }
}

TEST(Vit, InitialisesAsHuggingFaceDoes) {
  Options o;
  models::vit::Kind().resolve(&o, {.inputs = {{"pixel_values", at::kFloat, {3, 32, 32}}}, .classes = 10});
  const auto made = make_vit(o);
  auto& model = *made;
  nn::materialize(model, 1, at::kFloat, at::kCPU);
  for (const auto& p : nn::parameters(model)) {
    const double mean = p.value.mean().item<double>(), count = static_cast<double>(p.value.numel());
    if (p.name.ends_with("bias")) {
      EXPECT_EQ(two_norm(p.value), 0) << p.name;
    } else if (p.name.find("layernorm") != std::string::npos) {
      EXPECT_TRUE(at::equal(p.value, at::ones_like(p.value))) << p.name;
    } else {
      EXPECT_NEAR(mean, 0, 5 * 0.02 / std::sqrt(count)) << p.name;
      EXPECT_NEAR(two_norm(p.value) / std::sqrt(count), 0.02, 5 * 0.02 / std::sqrt(2 * count)) << p.name;
    }
  }
}

struct Resolved {
  const char* name;
  std::function<void(Options&)> set;
  nn::DataSpec data;
  const char* error;  ///< null: none
};
class VitOptions : public testing::TestWithParam<Resolved> {};

TEST_P(VitOptions, ExplicitKeysOverrideTheSizeAndBadNumbersAreNamed) {
  const auto& c = GetParam();
  Options o;
  c.set(o);
  const auto before = o;
  try {
    models::vit::Kind().resolve(&o, c.data);
    ASSERT_EQ(c.error, nullptr);
    EXPECT_EQ(*o.hidden_size, before.hidden_size.value_or(192));
    EXPECT_EQ(*o.num_layers, before.num_layers.value_or(12));
    EXPECT_EQ(*o.layer_norm_eps, 1e-12);
    EXPECT_FALSE(o.size);  // a resolved configuration has the sizes instead, each of which can be changed
  } catch (const ConfigError& e) {
    ASSERT_NE(c.error, nullptr) << e.what();
    EXPECT_NE(std::string(e.what()).find(c.error), std::string::npos) << e.what();
  }
}
const nn::DataSpec kImages{.inputs = {{"pixel_values", at::kFloat, {3, 224, 224}}}, .classes = 3};
INSTANTIATE_TEST_SUITE_P(
    Table, VitOptions,
    testing::Values(
        Resolved{"nothing", [](Options&) {}, kImages, nullptr},
        Resolved{"beside_size", [](Options& o) { o.size = "base", o.hidden_size = 60, o.num_layers = 2; }, kImages,
                 nullptr},
        Resolved{"heads", [](Options& o) { o.hidden_size = 64; }, kImages,
                 "model.hidden_size: 64 is not a multiple of model.num_heads = 3; the nearest that fit are 63 and 66"},
        Resolved{"patch", [](Options& o) { o.patch_size = 15; }, kImages,
                 "data.image_size: 224 is not a multiple of model.patch_size = 15"},
        Resolved{"upright",
                 [](Options&) {},
                 {.inputs = {{"pixel_values", at::kFloat, {3, 256, 192}}}, .classes = 3},
                 nullptr},
        Resolved{"height",
                 [](Options&) {},
                 {.inputs = {{"pixel_values", at::kFloat, {3, 200, 256}}}, .classes = 3},
                 "data.image_size: the height 200 is not a multiple of model.patch_size = 16; the nearest that fit are "
                 "192 and 208"},
        Resolved{"width",
                 [](Options&) {},
                 {.inputs = {{"pixel_values", at::kFloat, {3, 192, 10}}}, .classes = 3},
                 "data.image_size: the width 10 is not a multiple of model.patch_size = 16; the smallest"},
        Resolved{"no_image",
                 [](Options&) {},
                 {.inputs = {{"pixel_values", at::kFloat, {192, 256}}}, .classes = 3},
                 "reads pixel_values [channels, height, width], but the data have pixel_values float32 [192, 256]"},
        Resolved{"no_classes",
                 [](Options&) {},
                 {.inputs = {{"pixel_values", at::kFloat, {3, 224, 224}}}, .classes = 0},
                 "choose another train.task"},
        Resolved{"size", [](Options& o) { o.size = "bass"; }, kImages, "did you mean \"base\""},
        Resolved{"size_overridden",
                 [](Options& o) {
                   o.size = "base", o.hidden_size = 60, o.num_layers = 2, o.num_heads = 3, o.intermediate_size = 9;
                 },
                 kImages, "model.size: \"base\" has no effect"},
        Resolved{"weights_channels", [](Options& o) { o.weights_channels = 1; }, kImages, "num_channels = 1"}),
    [](const auto& test) { return std::string(test.param.name); });

const std::string kFile = "weights/config.json";

/// The kind is found by its name, and its config.json is written and read back.
TEST(VitKind, ConfigJsonRoundTrip) {
  const auto kind = models::all_models().at("vit");
  EXPECT_THROW(models::all_models().at("vot"), ConfigError);
  EXPECT_EQ(kind->head_prefix(), "classifier.");
  const auto options = kind->default_options();
  auto& o = *static_cast<Options*>(options.get());
  kind->fields().find("hidden_size")->set(&o, std::int64_t{30});
  kind->fields().find("dropout")->set(&o, 0.25);
  kind->fields().find("qkv_bias")->set(&o, false);
  kind->resolve(&o,
                {.inputs = {{"pixel_values", at::kFloat, {1, 32, 32}}}, .classes = 2, .class_names = {"cat", "dog"}});
  const auto json = kind->to_hf(&o);
  EXPECT_EQ(json.at("architectures"), nlohmann::json({"ViTForImageClassification"}));
  EXPECT_EQ(json.at("id2label"), nlohmann::json({{"0", "cat"}, {"1", "dog"}}));
  EXPECT_EQ(json.at("label2id"), nlohmann::json({{"cat", 0}, {"dog", 1}}));
  auto alike = o;
  alike.classes = 3;
  alike.class_names = {"crane", "bird", "crane"};
  EXPECT_EQ(kind->to_hf(&alike).at("id2label"), nlohmann::json({{"0", "crane"}, {"1", "bird"}, {"2", "crane"}}));
  EXPECT_EQ(kind->to_hf(&alike).at("label2id"), nlohmann::json({{"bird", 1}, {"crane", 2}})) << "as transformers";
  const auto model = kind->make(&o);
  for (const auto& p : nn::declarations(*model)) EXPECT_EQ(p.name.find("query.bias"), std::string::npos);

  Options back;
  back.dropout = 0.5;  // the user's value takes precedence
  ASSERT_TRUE(kind->from_hf(&back, json, kFile));
  EXPECT_THROW(kind->resolve(&back, kImages), ConfigError);  // its images have another shape
  kind->resolve(&back, {.inputs = {{"pixel_values", at::kFloat, {1, 32, 32}}}, .classes = 7});
  EXPECT_EQ(*back.hidden_size, 30);
  EXPECT_EQ(*back.dropout, 0.5);
  EXPECT_EQ(*back.qkv_bias, false);
  EXPECT_EQ(kind->to_hf(&back).at("id2label").at("6"), "LABEL_6");
  EXPECT_EQ(kind->to_hf(&back).at("image_size"), 32);
  EXPECT_EQ(back.weights_image_size, nn::ImageSize(32));
  kind->resolve(&back, {.inputs = {{"pixel_values", at::kFloat, {1, 32, 48}}}, .classes = 7});
  EXPECT_EQ(kind->to_hf(&back).at("image_size"), nlohmann::json({32, 48}));
  Options wide;
  ASSERT_TRUE(kind->from_hf(&wide, kind->to_hf(&back), kFile));
  EXPECT_EQ(wide.weights_image_size, nn::ImageSize(32, 48));

  Options bare;  // keys that a config.json leaves out are Hugging Face's defaults, not the size's
  ASSERT_TRUE(kind->from_hf(&bare, {{"model_type", "vit"}, {"num_hidden_layers", 3}}, kFile));
  EXPECT_EQ(*bare.hidden_size, 768);
  EXPECT_EQ(*bare.num_layers, 3);

  EXPECT_FALSE(kind->from_hf(&back, {{"model_type", "bert"}}, kFile));
  EXPECT_FALSE(kind->from_hf(&back, nlohmann::json(), kFile));
  const std::vector<std::pair<std::function<void(Options&)>, std::pair<const char*, nlohmann::json>>> contradictions = {
      {[](Options& x) { x.hidden_size = 192; },
       {"hidden_size = 192, but weights/config.json says", {{"hidden_size", 30}}}},
      {[](Options& x) { x.size = "base"; }, {"model.size: its hidden_size = 768, but", {{"hidden_size", 30}}}},
      {[](Options& x) { x.hidden_act = "gelu"; },
       {"hidden_act = gelu, but weights/config.json says", {{"hidden_act", "relu"}}}},
      {[](Options&) {}, {"it must be an integer", {{"hidden_size", "wide"}}}},
      {[](Options&) {},
       {"image_size = [32]; it must be an integer, at least 1 and at most 2147483647, or [height, width]",
        {{"image_size", {32}}}}},
      {[](Options&) {}, {"image_size = [32,0]; it must be an integer", {{"image_size", {32, 0}}}}}};
  for (const auto& [set, expected] : contradictions) {
    Options user;
    set(user);
    auto config = json;
    config.update(expected.second);
    try {
      kind->from_hf(&user, config, kFile);
      ADD_FAILURE() << expected.first;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(expected.first), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace trireme
