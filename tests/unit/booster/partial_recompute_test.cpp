// Which layers train.recompute_modules chooses, and what it refuses.
#include "core/booster/partial_recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/booster/plugin.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/gated_linear.h"

namespace trireme {
namespace {

struct Inner : nn::Unary {
  Inner() {
    attention = register_module(
        "attention", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{.hidden = 4, .heads = 2}));
  }
  [[nodiscard]] bool can_recompute() const override { return true; }
  at::Tensor compute(const at::Tensor& x, const nn::Context& context) override {
    return attention->forward(x, context);
  }
  std::shared_ptr<nn::SelfAttention> attention;
};

struct Layered : nn::Block {
  Layered() {
    register_module("self", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{.hidden = 4, .heads = 2}));
    register_module("mlp", std::make_shared<nn::GatedLinear>(nn::GatedLinear::Options{.in = 4, .out = 8}));
    register_module(
        "up", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 4, .out = 8, .activation = nn::Activation::gelu}));
    register_module("down", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 8, .out = 4}));
    register_module("mix", std::make_shared<Inner>());
  }
  nn::Tensors forward(nn::Tensors in, const nn::Context&) override { return in; }
};

struct Embed : nn::Block {
  Embed() { register_module("dense", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 4, .out = 4})); }
  nn::Tensors forward(nn::Tensors in, const nn::Context&) override { return in; }
};

struct LayeredModel : nn::Model {
  explicit LayeredModel(int layers) {
    add_block(register_module("embed", std::make_shared<Embed>()));
    for (int i = 0; i < layers; ++i) add_block(register_module("l" + std::to_string(i), std::make_shared<Layered>()));
    finish();
  }
};

TrainOptions selects(std::vector<std::string> names) {
  TrainOptions train;
  train.recompute_modules = std::move(names);
  return train;
}

std::vector<std::string> chosen(const TrainOptions& train, const std::vector<bool>& blocks = {}, int layers = 2) {
  LayeredModel model(layers);
  std::vector<std::string> paths;
  for (const auto* layer : recomputed_layers(model, train, blocks)) paths.push_back(layer->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

using Names = std::vector<std::string>;

TEST(RecomputedLayers, AreThoseThatTheNamesMatch) {
  EXPECT_EQ(chosen(selects({})), Names());
  EXPECT_EQ(chosen(selects({"attention"})), (Names{"l0.mix.attention", "l0.self", "l1.mix.attention", "l1.self"}));
  EXPECT_EQ(chosen(selects({"*.mlp", "l1.up"})), (Names{"l0.mlp", "l1.mlp", "l1.up"}));
  EXPECT_EQ(chosen(selects({"l0.*"})), (Names{"l0.mix", "l0.mlp", "l0.self", "l0.up"})) << "none inside another";
}

TEST(RecomputedLayers, AreOutsideTheBlocksThatAreRecomputedWhole) {
  auto train = selects({"*.self"});
  const std::vector<bool> first{true, true, false};
  EXPECT_EQ(chosen(train, first), (Names{"l0.self", "l1.self"})) << "train.recompute is false";
  train.recompute = true;
  EXPECT_EQ(chosen(train, first), Names{"l1.self"});
}

TEST(RecomputedLayers, RefuseNamesWithoutEffect) {
  auto whole = selects({"attention"});
  whole.recompute = true;
  auto offload = TrainOptions();
  offload.offload_activations = offload.recompute = true;
  struct Wrong {
    TrainOptions train;
    std::string error;
    int layers = 1;
  };
  for (const auto& [train, error, layers] : std::vector<Wrong>{
           {selects({"attention", "*.down"}),
            "train.recompute_modules: \"*.down\" matches no layer that can be recomputed by itself; this model has "
            "l0.self, l0.mlp, l0.up, l0.mix and 1 more"},
           {selects({"gate_proj"}),
            "train.recompute_modules: \"gate_proj\" matches no layer that can be recomputed by itself; this model has "
            "l0.self, l0.mlp, l0.up, l0.mix and 1 more"},
           {selects({"attention"}),
            "train.recompute_modules: \"attention\" matches no layer that can be recomputed by itself; this model has "
            "none, set train.recompute = true instead",
            0},
           {whole,
            "train.recompute_modules: has no effect: train.recompute recomputes all blocks that have these layers; "
            "remove one of the two, or recompute fewer blocks (train.recompute_ratio)"},
           {offload,
            "train.offload_activations: moves what a GPU saves to host memory, but this run computes on CPUs; remove "
            "it"}}) {
    LayeredModel model(layers);
    try {
      check_recompute(model, {.train = train, .device = "cpu"}, {static_cast<std::int64_t>(model.blocks().size())});
      ADD_FAILURE() << "accepted: " << error;
    } catch (const ConfigError& refused) {
      EXPECT_EQ(std::string(refused.what()), error);
    }
  }
}

}  // namespace
}  // namespace trireme
