// ViT against Hugging Face's, its options, and what every layout needs of it: a batch of no samples, recompute.
#include "models/vit/vit.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/base/safetensors_file.h"
#include "core/nn/criterion.h"
#include "core/nn/parameters.h"
#include "models/registry.h"

namespace trireme {
namespace {

using models::vit::Options;

const std::string kGolden = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/vit/";

Options tiny(double dropout = 0, double attention_dropout = 0) {
  Options o;
  o.hidden_size = 24, o.num_layers = 2, o.num_heads = 3, o.intermediate_size = 48, o.patch_size = 4;
  o.dropout = dropout, o.attention_dropout = attention_dropout, o.initializer_range = 0.2;
  models::vit::resolve(o, {.image_size = 16, .channels = 3, .classes = 5});
  return o;
}

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

TEST_P(VitGolden, LogitsLossAndEveryGradientAreHuggingFaces) {
  const SafeTensorsFile weights(kGolden + "model.safetensors"), expected(kGolden + "expected.safetensors");
  models::vit::Vit model(tiny());
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
  const auto logits = model.forward({expected.read("pixel_values")}, context, GetParam()).at(0);
  const auto loss = nn::cross_entropy(logits, labels);
  EXPECT_EQ(loss.weight, 3);
  (loss.sum / loss.weight).backward();
  EXPECT_LE(two_norm(logits - expected.read("logits")), 1e-10 * two_norm(expected.read("logits")));
  EXPECT_NEAR(loss.sum.item<double>() / 3, expected.read("loss").item<double>(), 1e-10);
  expect_close(gradients(model), want, 1e-10);
}
INSTANTIATE_TEST_SUITE_P(Recompute, VitGolden, testing::Bool());

}  // namespace
}  // namespace trireme
