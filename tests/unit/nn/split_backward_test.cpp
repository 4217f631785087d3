// A backward pass in two parts gives the gradients of a single one, and computes each once.
#include "core/nn/autograd/split_backward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <map>

#include "core/nn/autograd/backward_hook.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// How often each computation ran, by name.
std::map<std::string, int> calls;

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return x * w;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    variable_list out(2);
    if (ctx->needs_input_grad(0)) {
      ++calls["input"];
      out[0] = grads[0] * saved[1];
    }
    if (ctx->needs_input_grad(1)) {
      ++calls["weight"];
      out[1] = grads[0] * saved[0];
    }
    return out;
  }
};

at::Tensor leaf(std::vector<std::int64_t> shape) { return at::randn(shape, at::kDouble).set_requires_grad(true); }

std::vector<SplitBackward::Root> roots_of(const std::vector<at::Tensor>& outputs) {
  std::vector<SplitBackward::Root> roots;
  for (const auto& output : outputs)
    roots.push_back({torch::autograd::impl::gradient_edge(output),
                     at::cat({output.detach().reshape(-1)}).cos().view(output.sizes())});
  return roots;
}

struct Graph {
  std::vector<at::Tensor> inputs{leaf({3, 4}), leaf({3, 4})};
  at::Tensor w = leaf({4, 4}), b = leaf({4}), norm = leaf({4}), scale = leaf({3, 4}), alone = leaf({3, 4}),
             unused = leaf({2});
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return {w, b, norm, scale, alone, unused}; }

  /// A weight used twice, two inputs that meet, an output of parameters alone, and one that is an input itself.
  std::vector<at::Tensor> forward() const {
    auto x = at::layer_norm(inputs[0], {4}, norm, {}, 1e-6);
    x = Product::apply(at::gelu(at::linear(x, w, b)), scale);
    x = at::linear(x, w) + inputs[1] * inputs[0];
    return {x, (alone * scale).sin(), inputs[1]};
  }
};

void forget(const std::vector<at::Tensor>& tensors) {
  for (auto tensor : tensors) tensor.mutable_grad() = at::Tensor();
}

TEST(SplitBackward, EqualsTheWholePass) {
  at::manual_seed(3);
  const Graph graph;
  backward(roots_of(graph.forward()));
  std::vector<at::Tensor> expected;
  for (const auto& t : graph.inputs) expected.push_back(t.grad());
  for (const auto& t : graph.parameters()) expected.push_back(t.grad());
  forget(graph.inputs);
  forget(graph.parameters());
  calls.clear();

  SplitBackward pass(roots_of(graph.forward()), graph.inputs);
  EXPECT_EQ(calls["input"], 1);
  EXPECT_EQ(calls["weight"], 0);
  for (const auto& parameter : graph.parameters()) EXPECT_FALSE(parameter.grad().defined());
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(pass.input_gradients()[i].allclose(expected[i], 1e-14, 1e-14));
  pass.accumulate_weights();
  EXPECT_EQ(calls["input"], 1);
  EXPECT_EQ(calls["weight"], 1);
  for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
    const auto got = graph.parameters()[i].grad();
    ASSERT_EQ(got.defined(), expected[2 + i].defined()) << i;
    if (got.defined()) {
      EXPECT_TRUE(got.allclose(expected[2 + i], 1e-14, 1e-14)) << i;
    }
  }
  for (const auto& input : graph.inputs) EXPECT_FALSE(input.grad().defined());
}

TEST(SplitBackward, WithoutInputsEverythingIsDeferred) {
  at::manual_seed(4);
  const Graph graph;
  calls.clear();
  SplitBackward pass(roots_of(graph.forward()), {});
  EXPECT_EQ(calls["input"] + calls["weight"], 0);
  pass.accumulate_weights();
  EXPECT_EQ(calls["input"] + calls["weight"], 2);
  EXPECT_TRUE(graph.inputs[0].grad().defined());
  EXPECT_TRUE(graph.w.grad().defined());
}

TEST(SplitBackward, AnUnusedInputHasNoGradient) {
  const auto met = leaf({2}), other = leaf({2});
  SplitBackward pass(roots_of({met * 2}), {other, met});
  EXPECT_FALSE(pass.input_gradients()[0].defined());
  EXPECT_TRUE(pass.input_gradients()[1].defined());
}

/// What hooks around two products, b after a, report, with the number of weight gradients computed by then.
std::string reports_of(const at::Tensor& x, const std::function<void(const std::vector<SplitBackward::Root>&)>& run) {
  std::string reported;
  calls.clear();
  const auto record_call = [&](std::string what) {
    return [&reported, what = std::move(what)](BackwardPart part) {
      const char* parts[] = {"whole", "inputs", "weights"};
      reported += fmt::format("{} {} {}, ", what, parts[static_cast<int>(part)], calls["weight"]);
    };
  };
  Tensors y{x};
  for (const std::string block : {"a", "b"}) {
    y = register_backward_hook(std::move(y), record_call(block + " left"));
    y = register_backward_hook({Product::apply(y.front(), leaf({3, 4}))}, record_call(block + " entered"));
  }
  run(roots_of(y));
  return reported;
}

TEST(SplitBackward, HooksRunInOrderInBothParts) {
  EXPECT_EQ(reports_of(leaf({3, 4}), backward),
            "b entered whole 0, b left whole 1, a entered whole 1, a left whole 2, ");
  const auto x = leaf({3, 4}), fixed = x.detach();
  EXPECT_EQ(reports_of(x,
                       [&](const auto& roots) {
                         SplitBackward pass(roots, {x});
                         EXPECT_EQ(calls["input"], 2);
                         pass.accumulate_weights();
                       }),
            "b entered inputs 0, b left inputs 0, a entered inputs 0, a left inputs 0, "
            "b entered weights 0, b left weights 1, a entered weights 1, a left weights 2, ");
  // Without an input that needs a gradient, the hooks run as in a pass that is not split.
  for (const auto& inputs : {std::vector<at::Tensor>(), {x}})
    EXPECT_EQ(reports_of(fixed, [&](const auto& roots) { SplitBackward(roots, inputs).accumulate_weights(); }),
              "b entered whole 0, b left whole 1, a entered whole 1, ");
}

TEST(SplitBackward, AHookAtAForkRunsOnceInEachPart) {
  const auto x = leaf({4}), w = leaf({4});
  std::string reported;
  const auto made = register_backward_hook({x.sin(), w * 2}, [&](BackwardPart part) {
    reported += part == BackwardPart::inputs ? "inputs " : part == BackwardPart::weights ? "weights " : "whole ";
  });
  SplitBackward pass(roots_of({made[0] * made[1]}), {x});
  EXPECT_EQ(reported, "inputs ");
  pass.accumulate_weights();
  EXPECT_EQ(reported, "inputs weights ");
  EXPECT_TRUE(w.grad().defined());
}

// A block may change its input in place; where the old values are needed, autograd throws, as without a hook.
TEST(SplitBackward, AHooksOutputMayBeChangedInPlace) {
  const auto x = leaf({4});
  const auto call = [](BackwardPart) {};
  auto y = register_backward_hook({x * 3}, call).front();
  y.mul_(2);
  backward(roots_of({y}));
  EXPECT_TRUE(x.grad().equal((x * 6).detach().cos() * 6));
  auto z = register_backward_hook({x.sigmoid()}, call).front();
  z.mul_(2);
  EXPECT_THROW(backward(roots_of({z})), c10::Error);
}

class TwoLayers : public Block {
 public:
  TwoLayers()
      : first_(register_module("first", std::make_shared<Linear>(Linear::Options{.in = 4, .out = 6}))),
        second_(register_module("second", std::make_shared<Linear>(Linear::Options{.in = 6, .out = 4}))) {}
  Tensors forward(Tensors inputs, const Context& context) override {
    ++calls["run"];
    return {second_->forward(at::gelu(first_->forward(inputs.at(0), context)), context)};
  }

 private:
  std::shared_ptr<Linear> first_, second_;
};

class OneBlock : public Model {
 public:
  OneBlock() {
    add_block(register_module("block", std::make_shared<TwoLayers>()));
    finish();
  }
};

TEST(SplitBackward, RunsARecomputedBlockAgainOnce) {
  OneBlock model;
  materialize(model, 5, at::kDouble, at::kCPU);
  const auto x = leaf({3, 4});
  const Context training{.training = true};
  backward(roots_of(model.forward({x}, training)));
  std::vector<at::Tensor> expected{x.grad()};
  for (const auto& p : model.parameters()) expected.push_back(p.grad());
  forget({x});
  forget(model.parameters());

  calls.clear();
  SplitBackward pass(roots_of(model.forward({x}, training, recompute)), {x});
  EXPECT_TRUE(pass.input_gradients()[0].equal(expected[0]));
  pass.accumulate_weights();
  EXPECT_EQ(calls["run"], 2);
  std::size_t next = 1;
  for (const auto& p : model.parameters()) EXPECT_TRUE(p.grad().allclose(expected[next++], 1e-14, 1e-14));
}

}  // namespace
}  // namespace trireme::nn
