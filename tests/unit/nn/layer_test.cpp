// Layers, models and their parameters by name; adapted modules; the criterion.
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/nn/adapt.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/layers/criterion.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/linear.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

at::TensorOptions f64() { return at::TensorOptions().dtype(at::kDouble); }

/// x -> tanh(first(x)) + tanh(tied(x)), where `tied` is `first` under a second name when the model ties them.
struct TwoBlock : Block {
  TwoBlock(std::shared_ptr<Linear> first, std::shared_ptr<Linear> second)
      : first_(register_module("first", std::move(first))), second_(register_module("second", std::move(second))) {}
  Tensors forward(Tensors inputs, const Context& context) override {
    return {second_->forward(first_->forward(inputs.at(0), context).tanh(), context)};
  }
  std::shared_ptr<Linear> first_, second_;
};

struct TwoModel : Model {
  explicit TwoModel(bool tied) {
    const auto first = std::make_shared<Linear>(Linear::Options{.in = 6, .out = 6});
    const auto second = tied ? first : std::make_shared<Linear>(Linear::Options{.in = 6, .out = 6});
    add_block(register_module("pair", std::make_shared<TwoBlock>(first, second)));
    finish();
  }
};

TEST(Layer, IsOnTheMetaDeviceUntilItHasStorage) {
  Linear linear({.in = 3, .out = 2});
  ASSERT_TRUE(linear.weight.is_meta());
  EXPECT_TRUE(linear.weight.requires_grad());
  linear.bias.set_requires_grad(false);
  const auto value = at::ones({2, 3}, f64()), with_history = (at::ones({2}, f64()).requires_grad_() * 2);
  linear.set_storage("weight", value);
  linear.set_storage("bias", with_history);
  EXPECT_TRUE(linear.weight.is_same(value));
  EXPECT_TRUE(linear.named_parameters().find("weight")->is_same(value));
  EXPECT_TRUE(linear.weight.requires_grad());
  EXPECT_TRUE(linear.bias.is_leaf() && !linear.bias.requires_grad());
  EXPECT_TRUE(at::equal(linear.forward(at::ones({1, 3}, f64()), {}), at::ones({1, 2}, f64()) * 5));
  EXPECT_THROW(linear.set_storage("scale", value), UsageError);
}

TEST(Replaceable, CallsItsOwnFunctionOrTheReplacement) {
  Replaceable<int(int)> number([](int x) { return x + 1; });
  EXPECT_EQ(number(4), 5);
  std::vector<std::string> calls;
  number.wrap([&](const std::function<void()>& compute) {
    calls.push_back("before");
    compute();
    calls.push_back("after");
  });
  EXPECT_FALSE(number.replaced());
  number.replace([own = number.function()](int x) { return 10 * own(x); });
  EXPECT_TRUE(number.replaced());
  EXPECT_EQ(number(4), 50);
  number.run_wrapped([&] { calls.push_back("other"); });
  EXPECT_EQ(calls, (std::vector<std::string>{"before", "after", "before", "other", "after"}));
  int sum = 0;
  Replaceable<void(int)> add([&](int x) { sum += x; });
  add.wrap([](const std::function<void()>& compute) { compute(); });
  add(3);
  EXPECT_EQ(sum, 3);
}

TEST(Model, NamesEachLayerOnceAndEachParameterOnce) {
  TwoModel untied(false), tied(true);
  EXPECT_EQ(untied.blocks()[0]->path(), "pair");
  std::vector<std::string> names;
  for (const auto& d : declarations(untied)) names.push_back(d.name);
  EXPECT_EQ(names, (std::vector<std::string>{"pair.first.weight", "pair.first.bias", "pair.second.weight",
                                             "pair.second.bias"}));
  EXPECT_EQ(parameter_count(untied), 84);
  EXPECT_EQ(parameter_count(tied), 42);
  EXPECT_EQ(declarations(tied).at(0).name, "pair.first.weight");

  materialize(tied, 5, at::kDouble, at::kCPU);
  const auto& pair = dynamic_cast<TwoBlock&>(*tied.blocks()[0]);
  EXPECT_TRUE(pair.first_->weight.is_same(pair.second_->weight));
  EXPECT_FALSE(pair.second_->weight.is_meta());
}

TEST(Model, RefusesABlockWhoseParametersItDoesNotName) {
  struct Hidden : Model {
    Hidden() {
      const auto linear = [] { return std::make_shared<Linear>(Linear::Options{.in = 6, .out = 6}); };
      add_block(std::make_shared<TwoBlock>(linear(), linear()));
      finish();
    }
  };
  EXPECT_THROW(Hidden(), UsageError);
}

TEST(Materialize, ASliceEqualsTheSliceOfTheWholeDraw) {
  TwoModel whole(false);
  materialize(whole, 11, at::kDouble, at::kCPU);
  struct Row {
    const char* label;
    bool last_dim;  ///< else the first
    std::vector<shard::Range> ranges;
  };
  const std::vector<Row> table{{"rows", false, {{1, 4}}},
                               {"columns", true, {{3, 6}}},
                               {"none", true, {{6, 6}}},
                               {"parts", false, {{0, 1}, {2, 2}, {4, 6}}},
                               {"parts of columns", true, {{1, 2}, {3, 5}}}};
  const auto full = parameters(whole);
  for (const auto& [label, last_dim, ranges] : table) {
    TwoModel model(false);
    const auto& pair = dynamic_cast<TwoBlock&>(*model.blocks()[0]);
    for (const auto& linear : {pair.first_, pair.second_}) {
      linear->cut("weight", last_dim ? 1 : 0, ranges, "tp");
      linear->cut("bias", 0, ranges, "tp");
    }
    EXPECT_EQ(declarations(model).at(0).placement.cuts.at(0).ranges, ranges) << label;
    materialize(model, 11, at::kDouble, at::kCPU);
    const auto got = parameters(model);
    ASSERT_EQ(got.size(), full.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_FALSE(got[i].placement.is_whole());
      EXPECT_EQ(got[i].placement.shape, full[i].value.sizes().vec()) << label;
      EXPECT_TRUE(at::equal(got[i].value, got[i].placement.slice(full[i].value))) << label << got[i].name;
    }
    EXPECT_EQ(parameter_count(model), 84) << label;
  }
  // A second call does not change tensors that have memory.
  const auto before = full[0].value.clone();
  materialize(whole, 12, at::kDouble, at::kCPU);
  EXPECT_TRUE(at::equal(parameters(whole)[0].value, before));
}

/// A user's module with a parameter, a buffer and children.
struct Users : torch::nn::Module {
  Users() : linear(register_module("linear", torch::nn::Linear(4, 3))) {
    scale = register_parameter("scale", at::ones({3}, f64()) * 2);
    shift = register_buffer("shift", at::ones({3}, f64()));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return linear->forward(x) * scale + shift; }
  torch::nn::Linear linear;
  at::Tensor scale, shift;
};

TEST(Adapt, AUsersModuleKeepsItsNamesAndItsMemory) {
  const auto module = std::make_shared<Users>();
  bool training = true;
  const auto model = adapt(module, [&](Tensors in, const Context&) {
    training = module->linear->is_training();
    return Tensors{module->forward(in.at(0))};
  });
  const auto scale = module->scale;
  materialize(*model, 3, at::kDouble, at::kCPU);
  const auto found = parameters(*model);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].name, "scale");
  EXPECT_EQ(found[1].name, "linear.weight");
  EXPECT_TRUE(found[0].value.is_same(scale));
  EXPECT_EQ(model->named_buffers().size(), 1U);
  const auto x = at::rand({2, 4}, f64());
  const auto y = model->forward({x}, {.training = false}, nn::recompute).at(0);
  EXPECT_FALSE(training);
  EXPECT_TRUE(at::equal(y, module->forward(x)));
  y.sum().backward();
  EXPECT_TRUE(scale.grad().defined());
}

TEST(Adapt, AUsersModuleFollowsTheRunsDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto module = std::make_shared<Users>();
    const auto before = module->linear->weight.detach().clone();
    const auto model = adapt(module, [&](Tensors in, const Context&) { return Tensors{module->forward(in.at(0))}; });
    materialize(*model, 3, dtype, at::kCPU);
    for (const auto& p : parameters(*model)) EXPECT_EQ(p.value.scalar_type(), dtype) << p.name;
    EXPECT_EQ(module->shift.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(module->linear->weight, before.to(dtype)));
    const auto x = at::rand({2, 4}, at::TensorOptions(dtype));
    model->forward({x}, {.training = true}).at(0).sum().backward();
    EXPECT_EQ(module->scale.grad().scalar_type(), dtype);
  }
}

TEST(Adapt, ASequentialHasABlockPerChild) {
  torch::nn::Sequential sequential(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2));
  const auto model = adapt(sequential);
  ASSERT_EQ(model->blocks().size(), 3U);
  std::set<std::string> names;
  for (const auto& p : parameters(*model)) names.insert(p.name);
  EXPECT_EQ(names, (std::set<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"}));
  const auto x = at::rand({3, 4});
  EXPECT_TRUE(at::equal(model->forward({x}, {}).at(0), sequential->forward(x)));
}

TEST(Criterion, RefusesLabelsOutsideTheClasses) {
  const auto logits = at::rand({2, 3}, f64());
  for (const std::int64_t label : {-1, 3})
    EXPECT_THROW(cross_entropy(logits, at::tensor({label, std::int64_t{0}})), DataError) << label;
  EXPECT_EQ(cross_entropy(logits, at::tensor({-100, -100}, at::kLong)).item<double>(), 0);  // they do not count
}

TEST(Embedding, RefusesTokenIdsOutsideTheVocabulary) {
  Embedding embedding({.vocabulary = 4, .features = 2});
  embedding.weight = at::rand({4, 2}, f64());
  for (const std::int64_t word : {-1, 4}) EXPECT_THROW(embedding.forward(at::tensor({word}), {}), DataError) << word;
}

TEST(Criterion, EqualsTheSumOfLibTorchsCrossEntropy) {
  const auto logits = (at::rand({7, 5}, f64()) * 4).requires_grad_();
  const auto labels = at::randint(0, 5, {7}, at::kLong), others = at::randint(0, 5, {7}, at::kLong);
  const auto weights = at::rand({5}, f64()) + 0.1, share = at::rand({7}, f64());
  for (const CrossEntropyOptions& options :
       {CrossEntropyOptions{}, {.label_smoothing = 0.1}, {.label_smoothing = 0.1, .class_weights = weights}}) {
    const auto torch_loss = [&](const at::Tensor& of, at::Reduction::Reduction how) {
      return at::cross_entropy_loss(logits, of, options.class_weights, how, -100, options.label_smoothing);
    };
    const auto loss = cross_entropy(logits, labels, options);
    EXPECT_NEAR(loss.item<double>(), torch_loss(labels, at::Reduction::Sum).item<double>(), 1e-12);
    // The losses of the single samples add up to the loss of all.
    double parts = 0;
    for (std::int64_t i = 0; i < 7; ++i)
      parts += cross_entropy(logits.narrow(0, i, 1), labels.narrow(0, i, 1), options).item<double>();
    EXPECT_NEAR(parts, loss.item<double>(), 1e-12);
    // A mixed target is the mixture of the losses to its labels.
    auto mixed = options;
    mixed.shares = at::stack({share, 1 - share}, 1);
    const auto each = [&](const at::Tensor& of) { return torch_loss(of, at::Reduction::None); };
    EXPECT_NEAR(cross_entropy(logits, at::stack({labels, others}, 1), mixed).item<double>(),
                (share * each(labels) + (1 - share) * each(others)).sum().item<double>(), 1e-12);

    const auto none = cross_entropy(logits.narrow(0, 0, 0), labels.narrow(0, 0, 0), options);
    EXPECT_EQ(none.item<double>(), 0);
    logits.mutable_grad() = at::Tensor();
    none.backward();
    EXPECT_TRUE(logits.grad().defined() && logits.grad().abs().sum().item<double>() == 0);
  }
  EXPECT_EQ(cross_entropy(logits.to(at::kBFloat16), labels).scalar_type(), at::kFloat);
  EXPECT_THROW(cross_entropy(logits, labels, {.class_weights = share}), UsageError);
  EXPECT_THROW(cross_entropy(logits, labels, {.shares = share.unsqueeze(1)}), UsageError);
}

// The gradient is that of (the criterion's sum + the term) / weight, times the loss scale; parity tests have the rest.
TEST(AddToLoss, GivesTheTermItsPartOfTheMean) {
  const auto x = at::ones({3}, at::kDouble).set_requires_grad(true),
             w = at::ones({2}, at::kFloat).set_requires_grad(true);
  Context context{.training = true, .loss_weight = at::scalar_tensor(8, at::kDouble)};
  const auto gradient_of_w = [&](const Context& in) {
    w.mutable_grad() = x.mutable_grad() = at::Tensor();
    const auto y = in.add_to_loss(x, (3 * w).sum());
    EXPECT_TRUE(at::equal(y, x));
    (5 * y).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 5, at::kDouble)));
    return w.grad();
  };
  EXPECT_TRUE(at::equal(gradient_of_w(context), at::full({2}, 3 / 8.0F)));
  context.loss_scale = at::scalar_tensor(1024, at::kFloat);
  EXPECT_TRUE(at::equal(gradient_of_w(context), at::full({2}, 3 * 128.0F)));
  context.training = false;
  EXPECT_FALSE(gradient_of_w(context).defined());
  EXPECT_TRUE(context.add_to_loss(x.detach(), w.sum()).requires_grad()) << "as in training";
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(context.add_to_loss(x, w.sum()).is_same(x));
  }
  EXPECT_THROW(static_cast<void>(context.add_to_loss(x, w)), UsageError) << "no sum";
  EXPECT_THROW(static_cast<void>(Context{.training = true}.add_to_loss(x, w.sum())), UsageError) << "no weight";
}

}  // namespace
}  // namespace trireme::nn
