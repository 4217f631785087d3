// The costs of blocks against a count by hand.
#include "pipeline/block_costs.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "core/nn/adapt.h"
#include "core/nn/autograd/flops.h"
#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "models/registry.h"
#include "models/vit/kind.h"

namespace trireme::tests {
namespace {

using pipeline::flop_costs;
using pipeline::parameter_costs;
using pipeline::time_costs;

constexpr std::int64_t kHidden = 48, kMlp = 160, kPatch = 4, kPixels = 12, kClasses = 5, kTokens = 10;

std::shared_ptr<nn::Model> make_vit() {
  models::vit::Options options;
  options.hidden_size = kHidden;
  options.num_layers = 3;
  options.num_heads = 3;
  options.intermediate_size = kMlp;
  options.patch_size = kPatch;
  options.dropout = options.attention_dropout = 0.1;
  const auto kind = models::all_models().at("vit");
  kind->resolve(&options, {.inputs = {{"pixel_values", at::kFloat, {3, kPixels, kPixels}}}, .classes = kClasses});
  return kind->make(&options);
}

const auto kAlone = comm::Group::alone("world", 0, nullptr);
const nn::NamedTensors kImage{{"pixel_values", at::zeros({1, 3, kPixels, kPixels}, at::kFloat)}};

void expect_no_memory(nn::Model& model) {
  for (const auto& parameter : model.parameters()) EXPECT_TRUE(parameter.is_meta() && !parameter.grad().defined());
}

TEST(BlockCosts, FlopsOfAViTMatchTheFormulas) {
  const auto model = make_vit();
  const auto costs = flop_costs(*model, kImage, {}, kAlone);
  const double n = kTokens, h = kHidden, m = kMlp;
  // A multiply-add is two operations. The last layer computes the class token alone.
  const double embeddings = 2 * (n - 1) * h * 3 * kPatch * kPatch;
  const double layer = 2 * (4 * n * h * h + 2 * n * h * m) + 4 * n * n * h;
  const double last = 2 * (2 * n * h * h + 2 * h * h + 2 * h * m) + 4 * n * h;
  const double head = 2 * h * kClasses;
  const std::vector<double> expected{embeddings, layer, layer, last, head};
  EXPECT_EQ(costs, expected);
  expect_no_memory(*model);
}

TEST(FlopCounter, AnOuterOneIncludesAnInnerOne) {
  const auto x = at::zeros({2, 3}), y = at::zeros({3, 5});
  const nn::FlopCounter outer;
  at::mm(x, y);
  {
    const nn::FlopCounter inner;
    at::mm(x, y);
    EXPECT_EQ(inner.flops(), 60);
  }
  EXPECT_EQ(outer.flops(), 120);
}

TEST(BlockCosts, ParametersCountOnce) {
  const auto costs = parameter_costs(*make_vit());
  const double h = kHidden, m = kMlp;
  EXPECT_EQ(costs.at(0), 3 * kPatch * kPatch * h + h + h + kTokens * h);
  EXPECT_EQ(costs.at(1), 4 * (h * h + h) + 2 * h * m + m + h + 4 * h);
  EXPECT_EQ(costs.at(4), 2 * h + h * kClasses + kClasses);
}

TEST(BlockCosts, ProfilingHasNoSideEffects) {
  const auto model = make_vit();
  const auto costs = time_costs(*model, kImage, {.samples = 3, .dtype = at::kDouble}, kAlone);
  ASSERT_EQ(costs.size(), model->blocks().size());
  for (const auto cost : costs) EXPECT_GT(cost, 0);
  expect_no_memory(*model);

  const auto adapted = nn::adapt(torch::nn::Sequential(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4)));
  std::vector<at::Tensor> before;
  for (const auto& tensors : {adapted->parameters(), adapted->buffers()})
    for (const auto& tensor : tensors) before.push_back(tensor.clone());
  at::manual_seed(3);
  const auto drawn = at::rand({3});
  at::manual_seed(3);
  EXPECT_GT(flop_costs(*adapted, {{"x", at::zeros({1, 6})}}, {}, kAlone).front(), 0);
  time_costs(*adapted, {{"x", at::zeros({1, 6})}}, {.samples = 2, .dtype = at::kDouble}, kAlone);
  EXPECT_TRUE(at::rand({3}).equal(drawn)) << "profiling drew from the user's random generator";
  auto was = before.begin();
  for (const auto& tensors : {adapted->parameters(), adapted->buffers()})
    for (const auto& tensor : tensors)
      EXPECT_TRUE(tensor.equal(*was) && tensor.scalar_type() == (was++)->scalar_type() && !tensor.grad().defined());
}

/// A block with a layer and, optionally, one that another block has too.
struct Sharing : nn::Block {
  Sharing(std::int64_t out, const std::shared_ptr<nn::Linear>& shared)
      : own(register_module("own", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 6, .out = out}))) {
    if (shared) register_module("shared", shared);
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context&) override { return inputs; }
  std::shared_ptr<nn::Linear> own;
};

// A tied parameter is charged to the first block that uses it, which holds it under its name; the last has a copy.
TEST(BlockCosts, ATiedParameterIsChargedToItsFirstUser) {
  struct Tied : nn::Model {
    Tied() {
      const auto shared = std::make_shared<nn::Linear>(nn::Linear::Options{.in = 6, .out = 10});
      add_block(register_module("start", std::make_shared<Sharing>(1, nullptr)));
      add_block(register_module("embedding", std::make_shared<Sharing>(2, shared)));
      add_block(register_module("middle", std::make_shared<Sharing>(3, nullptr)));
      add_block(register_module("head", std::make_shared<Sharing>(4, shared)));
      finish();
    }
  } model;
  EXPECT_EQ(parameter_costs(model), (std::vector<double>{7, 14 + 70, 21, 28}));
}

/// One layer under two names.
struct Both : nn::Block {
  Both() : one(register_module("one", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 6, .out = 6}))) {
    register_module("two", one);
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {one->forward(one->forward(inputs[0], context), context)};
  }
  std::shared_ptr<nn::Linear> one;
};
struct BothModel : nn::Model {
  BothModel() {
    add_block(register_module("both", std::make_shared<Both>()));
    finish();
  }
};

TEST(BlockCosts, ALayerWithTwoNamesIsRestored) {
  BothModel model;
  EXPECT_EQ(flop_costs(model, {{"x", at::zeros({1, 6})}}, {}, kAlone), std::vector<double>{2 * 2 * 6 * 6});
  expect_no_memory(model);
}

}  // namespace
}  // namespace trireme::tests
