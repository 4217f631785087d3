// Layers that are recomputed by themselves: the gradients of the plain pass, and less memory between the passes.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <map>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/autograd/split_backward.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/batch_norm.h"
#include "core/nn/layers/gated_linear.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kHidden = 32, kTokens = 16, kSamples = 3;

/// A layer of a user's own, with running statistics inside.
struct Normed : Unary {
  Normed() { norm = register_module("norm", std::make_shared<BatchNorm>(BatchNorm::Options{.channels = kTokens})); }
  [[nodiscard]] bool can_recompute() const override { return true; }
  at::Tensor compute(const at::Tensor& x, const Context& context) override {
    return norm->forward(x, context).tanh().sigmoid();
  }
  std::shared_ptr<BatchNorm> norm;
};

struct LayerRow {
  const char* name;
  std::function<std::shared_ptr<Layer>()> make;
  std::int64_t query_tokens = 0;  ///< of an attention
};

std::shared_ptr<SelfAttention> attention_with(double dropout, bool causal = false, bool fused = false) {
  SelfAttention::Options options{.hidden = kHidden, .heads = 4, .dropout = dropout, .init_std = 0.4, .causal = causal};
  if (fused) options.names = {"qkv"};
  return std::make_shared<SelfAttention>(options);
}

const std::vector<LayerRow>& layer_rows() {
  static const std::vector<LayerRow> rows{
      {"attention", [] { return attention_with(0); }},
      {"attention_dropout", [] { return attention_with(0.3, /*causal=*/true); }},
      {"attention_fused", [] { return attention_with(0, false, /*fused=*/true); }},
      {"attention_first_token", [] { return attention_with(0.2); }, 1},
      {"linear",
       [] {
         return std::make_shared<Linear>(
             Linear::Options{.in = kHidden, .out = 2 * kHidden, .init_std = 0.4, .activation = Activation::gelu});
       }},
      {"gated",
       [] {
         auto layer =
             std::make_shared<GatedLinear>(GatedLinear::Options{.in = kHidden, .out = 2 * kHidden, .init_std = 0.4});
         // As in Llama, a child that the layer itself does not use.
         layer->register_module("down", std::make_shared<Linear>(Linear::Options{.in = kHidden, .out = kHidden}));
         return layer;
       }},
      {"own", [] { return std::make_shared<Normed>(); }}};
  return rows;
}

struct LayerBlock : Block {
  LayerBlock(std::shared_ptr<Layer> of, std::int64_t queries)
      : layer(register_module("layer", std::move(of))), query_tokens(queries) {}
  Tensors forward(Tensors in, const Context& context) override {
    if (auto* attention = dynamic_cast<SelfAttention*>(layer.get()))
      return {attention->forward(in.at(0) + 1, context, query_tokens)};
    return {dynamic_cast<Unary&>(*layer).forward(in.at(0) + 1, context)};
  }
  std::shared_ptr<Layer> layer;
  std::int64_t query_tokens;
};

struct LayerModel : Model {
  explicit LayerModel(const LayerRow& row) {
    block = register_module("block", std::make_shared<LayerBlock>(row.make(), row.query_tokens));
    add_block(block);
    finish();
    materialize(*this, 3, at::kDouble, at::kCPU);
  }
  std::shared_ptr<LayerBlock> block;
};

struct PassResult {
  std::map<std::string, at::Tensor> tensors;  ///< outputs, gradients, and buffers after the pass
  std::int64_t held = 0;                      ///< bytes between the forward and the backward pass
};

enum class Pass { plain, again, again_in_two_parts };

PassResult pass_of(const LayerRow& row, const at::Tensor& pixels, Pass pass) {
  LayerModel model(row);
  model.block->layer->set_recompute(pass != Pass::plain);
  const Context context{.training = true,
                        .seed = 8,
                        .step = 1,
                        .sample_ids = at::tensor(std::vector<std::int64_t>{6, 2, 7}),
                        .tokens = kTokens};
  const auto x = pixels.clone().set_requires_grad(true);
  PassResult result;
  const auto before = memory::held();
  const auto out = model.forward({x}, context).at(0);
  result.held = memory::held() - before;
  const auto loss = out.square().sum();
  result.tensors["output"] = out.detach();
  if (pass == Pass::again_in_two_parts) {
    SplitBackward parts({{torch::autograd::impl::gradient_edge(loss), at::ones_like(loss)}}, {x});
    result.tensors["x"] = parts.input_gradients().at(0);
    parts.accumulate_weights();
  } else {
    loss.backward();
    result.tensors["x"] = x.grad();
  }
  for (const auto& p : parameters(model)) result.tensors[p.name] = p.value.grad();
  for (const auto& item : model.named_buffers()) result.tensors[item.key()] = item.value();
  return result;
}

class SelectiveRecompute : public testing::TestWithParam<LayerRow> {};

TEST_P(SelectiveRecompute, HasThePlainGradientsAndHoldsOnlyItsInput) {
  memory::count();
  const auto pixels = at::rand({kSamples, kTokens, kHidden}, at::kDouble);
  const auto plain = pass_of(GetParam(), pixels, Pass::plain);
  const auto needed = static_cast<std::int64_t>(pixels.nbytes() + plain.tensors.at("output").nbytes());
  EXPECT_GT(plain.held, needed + 1024);
  for (const auto pass : {Pass::again, Pass::again_in_two_parts}) {
    const auto again = pass_of(GetParam(), pixels, pass);
    EXPECT_LE(again.held, needed + 1024);
    ASSERT_EQ(plain.tensors.size(), again.tensors.size());
    for (const auto& [name, tensor] : plain.tensors) {
      const auto& other = again.tensors.at(name);
      ASSERT_EQ(tensor.defined(), other.defined()) << name;
      EXPECT_TRUE(!tensor.defined() || at::equal(tensor, other)) << name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Layers, SelectiveRecompute, testing::ValuesIn(layer_rows()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(RecomputedLayer, SavesAllWhenItIsTurnedOff) {
  memory::count();
  const auto& row = layer_rows()[4];
  LayerModel model(row);
  const auto x = at::rand({kSamples, kTokens, kHidden}, at::kDouble).set_requires_grad(true);
  std::int64_t held[2];
  for (const bool on : {true, false}) {
    model.block->layer->set_recompute(on);
    const auto before = memory::held();
    const auto out = model.forward({x}, {.training = true});
    held[on] = memory::held() - before;
  }
  EXPECT_GT(held[0], held[1]);
}

TEST(RecomputedLayer, MustSaveMoreThanItsInput) {
  EXPECT_FALSE(Linear({.in = 2, .out = 2}).can_recompute());
  EXPECT_FALSE(Dropout(0.1).can_recompute());
}

}  // namespace
}  // namespace trireme::nn
