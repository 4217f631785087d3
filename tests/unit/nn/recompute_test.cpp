// Recompute gives the gradients of the plain pass, also in the difficult cases.
#include "core/nn/autograd/recompute.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>

#include "core/base/error.h"
#include "core/nn/layers/dropout.h"
#include "core/nn/layers/linear.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

/// Two tensors in, three out (the last an integer count); `spare` is never used; `frozen` has no gradient.
struct Tangle : Block {
  Tangle() {
    const auto linear = [] { return std::make_shared<Linear>(Linear::Options{.in = 8, .out = 8, .init_std = 0.5}); };
    first = register_module("first", linear());
    frozen = register_module("frozen", linear());
    spare = register_module("spare", linear());
    dropout = register_module("dropout", std::make_shared<Dropout>(0.3));
    frozen->weight.set_requires_grad(false);
  }
  Tensors forward(Tensors in, const Context& context) override {
    ++runs;
    if (runs == 2 && fail_second) throw DataError("second run");
    const auto h = dropout->forward(first->forward(in.at(0), context).tanh(), context);
    const auto side = frozen->forward(h + first->forward(in.at(1), context), context);
    return {h * side, side.sum(-1), at::tensor(std::vector<std::int64_t>{runs})};
  }
  int runs = 0;
  bool fail_second = false;
  std::shared_ptr<Linear> first, frozen, spare;
  std::shared_ptr<Dropout> dropout;
};

/// A model of one block.
template <class B>
struct ModelOf : Model {
  explicit ModelOf(at::ScalarType dtype = at::kDouble) {
    block = register_module("block", std::make_shared<B>());
    add_block(block);
    finish();
    materialize(*this, 3, dtype, at::kCPU);
  }
  std::shared_ptr<B> block;
};
using TangleModel = ModelOf<Tangle>;

Context training() {
  return {.training = true, .seed = 8, .step = 1, .sample_ids = at::tensor(std::vector<std::int64_t>{6, 2, 7})};
}

struct RecomputeCase {
  const char* name;
  bool first_wants, second_wants;  ///< whether the two inputs require gradients
  int used;                        ///< which outputs feed the loss: bit 0, bit 1
};

class Recomputed : public testing::TestWithParam<RecomputeCase> {};

TEST_P(Recomputed, HasThePlainGradients) {
  const auto& c = GetParam();
  std::map<std::string, at::Tensor> got[2];
  at::Tensor outputs[2];
  const auto x = at::rand({3, 8}, at::kDouble), y = at::rand({3, 8}, at::kDouble);
  for (const bool again : {false, true}) {
    TangleModel model;
    const auto a = x.clone().set_requires_grad(c.first_wants), b = y.clone().set_requires_grad(c.second_wants);
    auto out = model.forward({a, b}, training(), again ? RunBlock(recompute) : RunBlock());
    EXPECT_FALSE(out.at(2).requires_grad());
    outputs[again] = out[0].detach();
    auto loss = at::zeros({}, at::kDouble);
    if (c.used & 1) loss = loss + out[0].square().sum();
    if (c.used & 2) loss = loss + (out[1] * 3).sum();
    loss.backward();
    EXPECT_EQ(model.block->runs, again ? 2 : 1);
    for (const auto& p : parameters(model)) got[again][p.name] = p.value.grad();
    got[again]["a"] = a.grad();
    got[again]["b"] = b.grad();
  }
  EXPECT_TRUE(at::equal(outputs[0], outputs[1]));
  int defined = 0;
  for (const auto& [name, plain] : got[0]) {
    ASSERT_EQ(plain.defined(), got[1].at(name).defined()) << name;
    if (!plain.defined()) continue;
    ++defined;
    EXPECT_TRUE(at::equal(plain, got[1].at(name))) << name;
  }
  EXPECT_EQ(defined, 3 + c.first_wants + c.second_wants);  // first.weight, first.bias, frozen.bias
  EXPECT_FALSE(got[1].at("block.spare.weight").defined());
}
INSTANTIATE_TEST_SUITE_P(Inputs, Recomputed,
                         testing::Values(RecomputeCase{"all", true, true, 3}, RecomputeCase{"pixels", false, false, 3},
                                         RecomputeCase{"one", false, true, 3},
                                         RecomputeCase{"first_output", true, true, 1},
                                         RecomputeCase{"second_output", true, false, 2}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Recompute, AccumulatesEachParameterOnceInTheOuterGraph) {
  TangleModel model;
  const auto x = at::rand({3, 8}, at::kDouble);
  int calls = 0;
  struct Counter : torch::autograd::PostAccumulateGradHook {
    explicit Counter(int& n) : calls(n) {}
    void operator()(const at::Tensor&) override { ++calls; }
    int& calls;
  };
  torch::autograd::impl::set_post_acc_grad_hooks(model.block->first->weight, std::make_unique<Counter>(calls));
  model.forward({x, x}, training(), recompute).at(0).sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(Recompute, IsAPlainPassWhenNothingRequiresGrad) {
  TangleModel model;
  const at::NoGradGuard guard;
  const auto x = at::rand({3, 8}, at::kDouble);
  EXPECT_FALSE(model.forward({x, x}, training(), recompute).at(0).requires_grad());
}

TEST(Recompute, AnErrorInTheSecondRunReachesTheCaller) {
  TangleModel model;
  model.block->fail_second = true;
  const auto x = at::rand({3, 8}, at::kDouble);
  const auto out = model.forward({x, x}, training(), recompute).at(0).sum();
  EXPECT_THROW(out.backward(), DataError);
}

TEST(Recompute, UnderAutocastItCastsAsTheForwardPassDid) {
  std::map<std::string, at::Tensor> got[2];
  const auto x = at::rand({3, 8});
  for (const bool again : {false, true}) {
    TangleModel model;
    for (auto& p : parameters(model)) p.value.set_data(p.value.data().to(at::kFloat));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    // The cache adds up the gradients of a weight that is used twice in bf16; recompute runs without it.
    at::autocast::set_autocast_cache_enabled(again);
    const auto out = model.forward({x, x}, training(), again ? RunBlock(recompute) : RunBlock());
    at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(out.at(1).scalar_type(), at::kBFloat16);
    out[0].to(at::kFloat).square().sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    for (const auto& p : parameters(model)) got[again][p.name] = p.value.grad();
  }
  const auto& weight = got[1].at("block.first.weight");
  ASSERT_TRUE(weight.defined());
  EXPECT_TRUE(at::equal(weight, got[0].at("block.first.weight")));
}

/// With one sample, the gradient of each parameter is the output's gradient tensor itself.
struct TwoBiases : Block {
  TwoBiases() {
    declare("a", a, {1, 8}, Init::normal(0, 1));
    declare("b", b, {1, 8}, Init::normal(0, 1));
  }
  Tensors forward(Tensors in, const Context&) override { return {in.at(0) + a + b}; }
  at::Tensor a, b;
};

TEST(Recompute, GradientsThatShareATensorAccumulateSeparately) {
  ModelOf<TwoBiases> model;
  const auto x = at::rand({1, 8}, at::kDouble), scale = at::rand({1, 8}, at::kDouble);
  for (int microbatch = 0; microbatch < 2; ++microbatch)
    (model.forward({x}, training(), recompute).at(0) * scale).sum().backward();
  EXPECT_TRUE(at::equal(model.block->a.grad(), 2 * scale));
  EXPECT_TRUE(at::equal(model.block->b.grad(), 2 * scale));
}

/// Draws from LibTorch's own generator, as a user's module may.
struct TorchDropout : Block {
  TorchDropout() { linear = register_module("linear", std::make_shared<Linear>(Linear::Options{.in = 8, .out = 8})); }
  Tensors forward(Tensors in, const Context& context) override {
    masks.push_back(at::dropout(at::ones({64}), 0.5, true));
    return {linear->forward(in.at(0), context) * masks.back().sum()};
  }
  bool uses_torch_generators() const override { return true; }
  std::vector<at::Tensor> masks;
  std::shared_ptr<Linear> linear;
};

TEST(Recompute, RestoresTheGeneratorsThatABlockUses) {
  ModelOf<TorchDropout> model(at::kFloat);
  const auto out = model.forward({at::rand({3, 8})}, training(), recompute).at(0).sum();
  const auto between = at::rand({4});
  out.backward();
  ASSERT_EQ(model.block->masks.size(), 2U);
  EXPECT_TRUE(at::equal(model.block->masks[0], model.block->masks[1]));
  EXPECT_FALSE(at::equal(between, at::rand({4})));  // the random stream continued where it was
}

}  // namespace
}  // namespace trireme::nn
