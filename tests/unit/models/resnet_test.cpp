// ResNet against torchvision's (tests/golden/make/make_resnet.py): names, logits, loss, every gradient and every
// running statistic in float64; its configuration; the options it refuses.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <string>

#include "core/base/safetensors_file.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/parameters.h"
#include "models/resnet/kind.h"
#include "trireme.h"

namespace trireme {
namespace {

using ResNetOptions = models::resnet::Options;

constexpr double kResNetBound = 1e-10;

nn::DataSpec images(std::vector<std::int64_t> shape, std::int64_t classes) {
  return {.inputs = {{"pixel_values", at::kFloat, std::move(shape)}},
          .targets = {{nn::kLabels, at::kLong, {}}},
          .classes = classes};
}

struct Form {
  std::int64_t depth;
  bool channels_last, recompute;
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.depth << (form.channels_last ? " channels last" : "") << (form.recompute ? " recompute" : "");
}

class GoldenResNet : public testing::TestWithParam<Form> {
 protected:
  static double size(const at::Tensor& t) { return t.norm().item<double>(); }
  static void expect_near(const at::Tensor& got, const at::Tensor& want, double floor, const std::string& name) {
    EXPECT_LE(size(got - want), kResNetBound * std::max(size(want), floor)) << name;
  }
};

TEST_P(GoldenResNet, EqualsTorchvision) {
  const auto [depth, channels_last, recompute] = GetParam();
  const auto folder = fmt::format("{}/tests/golden/resnet_{}/", TRIREME_SOURCE_DIR, depth);
  const SafeTensorsFile weights(folder + "model.safetensors"), expected(folder + "expected.safetensors");
  const auto kind = builtin_kinds().models.at("resnet");
  auto options = kind->default_options();
  auto& o = *static_cast<ResNetOptions*>(options.get());
  o.depth = depth;
  o.width = 2;
  o.channels_last = channels_last;
  kind->resolve(options.get(), images({3, 36, 44}, 3));
  const auto model = kind->make(options.get());
  nn::materialize(*model, 1, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(*model);
  auto buffers = nn::buffers(*model);
  ASSERT_EQ(parameters.size() + buffers.size(), weights.tensors().size());
  for (auto& p : parameters) p.value.data().copy_(weights.read(p.name));
  for (auto& b : buffers) b.value.copy_(weights.read(b.placement.name));

  const auto pixels = expected.read("pixel_values");
  nn::Context context;
  expect_near(model->forward({pixels}, context)[0], expected.read("evaluation"), 0, "in evaluation");
  context.training = true;
  const auto run = recompute ? nn::RunBlock(nn::recompute) : nn::RunBlock();
  const auto logits = model->forward({pixels}, context, run)[0];
  const auto loss = nn::cross_entropy(logits, expected.read("labels")) / static_cast<double>(pixels.size(0));
  loss.backward();
  expect_near(logits, expected.read("logits"), 0, "logits");
  EXPECT_NEAR(loss.item<double>(), expected.read("loss").item<double>(), kResNetBound);
  double squares = 0;
  for (const auto& p : parameters) squares += std::pow(size(expected.read("grad." + p.name)), 2);
  for (const auto& p : parameters) {
    ASSERT_TRUE(p.value.grad().defined()) << p.name;
    expect_near(p.value.grad(), expected.read("grad." + p.name), 1e-6 * std::sqrt(squares), p.name);
  }
  for (const auto& b : buffers)
    expect_near(b.value.to(at::kDouble), expected.read("after." + b.placement.name).to(at::kDouble), 0,
                b.placement.name);
}

INSTANTIATE_TEST_SUITE_P(Forms, GoldenResNet,
                         testing::Values(Form{18, false, false}, Form{18, true, false}, Form{50, true, false},
                                         Form{50, false, true}));

TEST(ResNet, ConfigJsonRoundTrip) {
  const auto kind = builtin_kinds().models.at("resnet");
  const auto options = kind->default_options();
  static_cast<ResNetOptions*>(options.get())->depth = 101;
  static_cast<ResNetOptions*>(options.get())->width = 8;
  kind->resolve(options.get(), images({1, 32, 32}, 4));
  const auto written = kind->to_hf(options.get());
  EXPECT_EQ(written.at("architecture"), "resnet101");
  EXPECT_EQ(written.at("num_features"), 256);
  const auto again = kind->default_options();
  ASSERT_TRUE(kind->from_hf(again.get(), written, "config.json"));
  kind->resolve(again.get(), images({1, 32, 32}, 4));
  EXPECT_EQ(kind->to_hf(again.get()), written);
  auto prepared = written;
  const nlohmann::json whole{{"size", {{"height", 32}, {"width", 48}}}, {"image_mean", {0.5}}, {"image_std", {0.25}}};
  kind->add_preparation(prepared, whole);
  const nlohmann::json timm{{"num_classes", 4},      {"first_conv", "conv1"}, {"classifier", "fc"},
                            {"mean", {0.5}},         {"std", {0.25}},         {"interpolation", "bilinear"},
                            {"crop_mode", "squash"}, {"crop_pct", 1.0},       {"input_size", {1, 32, 48}}};
  EXPECT_EQ(prepared.at("pretrained_cfg"), timm);
  auto cropped = whole;
  cropped["crop_size"] = cropped["size"];
  cropped["size"] = {{"shortest_edge", 64}};
  kind->add_preparation(prepared, cropped);
  EXPECT_EQ(prepared.at("pretrained_cfg").at("crop_mode"), "center");
  EXPECT_EQ(prepared.at("pretrained_cfg").at("crop_pct"), 0.5);
  EXPECT_FALSE(kind->from_hf(again.get(), {{"architecture", "vit_tiny"}}, "config.json"));
  EXPECT_FALSE(kind->from_hf(again.get(), {{"model_type", "vit"}}, "config.json"));
}

TEST(ResNet, InitialisesAsTorchvisionDoes) {
  const auto kind = builtin_kinds().models.at("resnet");
  const auto options = kind->default_options();
  static_cast<ResNetOptions*>(options.get())->depth = 18;
  kind->resolve(options.get(), images({3, 64, 64}, 5));
  const auto model = kind->make(options.get());
  EXPECT_EQ(model->blocks().size(), 10U);
  nn::materialize(*model, 1, at::kFloat, at::kCPU);
  for (const auto& p : nn::parameters(*model)) {
    double wanted = -1;
    if (p.name == "layer3.1.conv2.weight") wanted = std::sqrt(2.0 / (256 * 9));
    if (p.name == "fc.weight") wanted = 1 / std::sqrt(512 * 3.0);
    if (wanted > 0) {
      EXPECT_NEAR(p.value.std().item<double>(), wanted, 1e-3);
    }
    const bool last = p.name.find(".bn2.weight") != std::string::npos;
    if (last || p.name == "bn1.weight") {
      EXPECT_EQ(p.value.sum().item<double>(), last ? 0 : 64) << p.name;
    }
  }
}

TEST(ResNet, RefusesUnsupportedOptions) {
  const auto kind = builtin_kinds().models.at("resnet");
  const auto message = [&](const std::function<void(ResNetOptions&, void*)>& what) -> std::string {
    const auto options = kind->default_options();
    try {
      what(*static_cast<ResNetOptions*>(options.get()), options.get());
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  const auto resolved = [&](std::int64_t depth, const nn::DataSpec& data) {
    return message([&](ResNetOptions& o, void* options) {
      o.depth = depth;
      kind->resolve(options, data);
    });
  };
  const auto stored = [&](const nlohmann::json& config) {
    return message([&](ResNetOptions& o, void* options) {
      o.depth = 34;
      kind->from_hf(options, config, "a/config.json");
      kind->resolve(options, images({3, 32, 32}, 2));
    });
  };
  EXPECT_EQ(resolved(20, images({3, 32, 32}, 2)),
            "model.depth: no ResNet has 20 layers; choose 18, 34, 50, 101 or 152");
  EXPECT_NE(resolved(18, images({3, -1, 32}, 2)).find("reads pixel_values [channels, height, width]"),
            std::string::npos);
  EXPECT_NE(stored({{"architecture", "resnet18"}})
                .find("model.depth: 34, but a/config.json says architecture = \"resnet18\""),
            std::string::npos);
  EXPECT_NE(stored({{"architecture", "resnet26d"}}).find("\"resnet26d\"; only resnet18, 34, 50"), std::string::npos);
  EXPECT_NE(stored({{"model_type", "resnet"}}).find("use torchvision's or timm's weights"), std::string::npos);
  EXPECT_NE(
      stored({{"architecture", "resnet34"}, {"num_channels", 1}}).find("images of 1 channel, but the data have 3"),
      std::string::npos);
}

}  // namespace
}  // namespace trireme
