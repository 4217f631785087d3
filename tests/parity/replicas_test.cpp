// Contract C1 for replicas in one process: every case with one to three replicas against one process without a plugin,
// in float64. Then what belongs to the replicas: buffers, errors on their threads, and layouts that are refused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand_like.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/layers/batch_norm.h"
#include "core/nn/layers/linear.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

/// One replica uses the plugin without threads; the others need a device each.
const std::vector<Layout> kLayouts{{"one", "replicas = 1"}, {"two", "replicas = 2"}, {"three", "replicas = 3"}};

bool lacks_devices() { return world().device().is_cuda() && comm::cuda_device_count() < 3; }

class Replicas : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (lacks_devices()) GTEST_SKIP() << "needs three GPUs, or the CPU";
  }
};

TEST_P(Replicas, EqualOneProcess) { expect_same_as_one_process(GetParam()); }

// 11 samples in batches of 8: the second is ragged. Microbatches of 3 samples end with one of 2, fewer than replicas.
INSTANTIATE_TEST_SUITE_P(
    Ladder, Replicas,
    testing::ValuesIn(cross(
        "data_parallel", "", kLayouts,
        {{.name = "plain"},
         {.name = "sgd_clip", .adamw = false, .max_norm = 0.5},
         {.name = "accumulate", .micro_batch = 3},
         {.name = "reduce_each", .micro_batch = 3, .max_norm = 0.5, .reduce_each = true},
         {.name = "dropout", .dropout = 0.3},
         {.name = "dropout_recompute", .micro_batch = 3, .dropout = 0.3, .recompute = true},
         {.name = "everything", .micro_batch = 5, .adamw = false, .dropout = 0.2, .max_norm = 0.3, .recompute = true},
         {.name = "single_samples", .micro_batch = 1, .dropout = 0.2},
         {.name = "two_epochs", .samples = 11, .steps = 4, .max_norm = 0.5},
         {.name = "lora", .micro_batch = 2, .max_norm = 0.5, .lora = adapters()},
         {.name = "freeze_no_decay", .freeze = {"*layer.0.*", "cls_token"}, .no_decay = {"*bias", "layernorm"}},
         {.name = "unused", .unused_block = true},
         {.name = "rare", .micro_batch = 3, .rare = true},
         {.name = "rare_recompute", .recompute = true, .rare = true},
         {.name = "balance", .micro_batch = 3, .balance = true},
         {.name = "twice", .micro_batch = 4, .twice = true},
         {.name = "tied", .dropout = 0.1, .smoothing = 0.1, .vocabulary = Case::Vocabulary::tied},
         {.name = "adapted", .micro_batch = 5, .adapted = true},
         {.name = "adapted_in_place", .adapted = true, .in_place = true}})),
    [](const auto& value) { return value.param.name; });

class LowPrecisionReplicas : public testing::TestWithParam<Rounding> {};

TEST_P(LowPrecisionReplicas, StayNearFloat64) {
  if (lacks_devices()) GTEST_SKIP() << "needs three GPUs, or the CPU";
  Case c{.name = "hard", .micro_batch = 3, .adamw = false, .max_norm = 0.5, .recompute = true, .balance = true};
  c.plugin_name = "data_parallel";
  c.plugin = "replicas = 3";
  expect_near_float64(c, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Bounds, LowPrecisionReplicas,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 1e-2, 5e-2},
                                         Rounding{"fp16", 2e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

class ReplicasRules : public testing::Test {
 protected:
  void SetUp() override {
    if (lacks_devices()) GTEST_SKIP() << "needs three GPUs, or the CPU";
  }
  static Case of(Case c, const std::string& plugin = "replicas = 3") {
    c.plugin_name = "data_parallel";
    c.plugin = plugin;
    return c;
  }
};

TEST_F(ReplicasRules, AStepThatIsNotFiniteChangesNothing) {
  for (const char* precision : {"fp32", "fp64"})
    expect_not_finite_is_skipped(of({.name = "not_finite", .max_norm = 0.5, .precision = precision}));
  const auto c = of({.name = "overflow", .steps = 1, .precision = "fp16", .initial_scale = 1e30});
  const auto trace = by_train_step(c);
  for (const auto& [name, value] : start(c))
    EXPECT_TRUE(at::equal(trace.weights.at(name), value.to(at::kFloat))) << name;
}

TEST_F(ReplicasRules, EvaluateAsOneProcess) {
  expect_evaluation_of_torch_ddp(of({.name = "evaluation", .samples = 19}));
}

/// Throws on request, in the forward or in the backward pass of the replicas that have certain samples.
struct Trouble {
  std::atomic<bool> forward = false, backward = false;
};

class Fragile : public nn::Block {
 public:
  explicit Fragile(std::shared_ptr<Trouble> trouble) : trouble_(std::move(trouble)) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto first = context.sample_ids[0].item<std::int64_t>();
    if (trouble_->forward) throw DataError(fmt::format("forward pass of sample {}", first));
    if (trouble_->backward && inputs[0].requires_grad())
      inputs[0].register_hook([first](const at::Tensor&) -> at::Tensor {
        throw DataError(fmt::format("backward pass of sample {}", first));
      });
    return inputs;
  }

 private:
  std::shared_ptr<Trouble> trouble_;
};

class Flatten : public nn::Block {
 public:
  nn::Tensors forward(nn::Tensors inputs, const nn::Context&) override { return {inputs[0].flatten(1)}; }
};

class Affine : public nn::Block {
 public:
  Affine(std::int64_t in, std::int64_t out)
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .init_std = 0.1}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {linear_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

class Norm : public nn::Block {
 public:
  Norm(std::int64_t channels, bool synchronised)
      : norm_(register_module("norm", std::make_shared<nn::BatchNorm>(nn::BatchNorm::Options{
                                          .channels = channels, .synchronised = synchronised}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {norm_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::BatchNorm> norm_;
};

/// Two affine layers on the pixels, and between them the block that make() returns.
class Between : public nn::Model {
 public:
  Between(const Case& c, std::shared_ptr<nn::Block> block) {
    add_block(register_module("flatten", std::make_shared<Flatten>()));
    add_block(register_module("in", std::make_shared<Affine>(3 * c.pixels * c.pixels, 6)));
    add_block(register_module("between", std::move(block)));
    add_block(register_module("out", std::make_shared<Affine>(6, 5)));
    finish();
  }
};

using MakeBlock = std::function<std::shared_ptr<nn::Block>()>;

BoostInputs inputs_with(const Case& c, const MakeBlock& make) {
  auto inputs = make_inputs(c);
  inputs.source.weights = "";
  inputs.source.make = [c, make] { return std::make_shared<Between>(c, make()); };
  inputs.source.model = inputs.source.make();
  return inputs;
}

/// Dropout from LibTorch's generators, with as many draws as a user's own module may have.
class Drawing : public nn::Block {
 public:
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    for (int i = 0; i < 30 && context.training; ++i)
      inputs[0] = inputs[0] * at::rand_like(inputs[0], at::TensorOptions(at::kFloat)).gt(0.02);
    return inputs;
  }
  bool uses_torch_generators() const override { return true; }
};

// The order in which threads run must not show in any bit: not where half precision casts a weight that is used twice,
// and not in draws from LibTorch's generators, which belong to the process.
TEST_F(ReplicasRules, GiveTheSameBitsEachTime) {
  const auto drawing = of({.name = "drawing", .recompute = true, .precision = "fp32"});
  const auto weights_of = [](const Case& c, BoostInputs inputs) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(std::move(inputs));
    for_steps(c, run, [&](const data::StepBatch& batch) { run.train_step(batch); });
    return gathered(run.model->weights(), booster.mesh());
  };
  const auto check = [&](const Case& c, const std::function<BoostInputs()>& inputs) {
    const auto first = weights_of(c, inputs());
    for (int i = 0; i < 5; ++i)
      for (const auto& [name, value] : weights_of(c, inputs())) EXPECT_TRUE(at::equal(value, first.at(name))) << name;
  };
  for (const auto& c : {of({.name = "twice", .layers = 6, .twice = true, .everywhere = true, .precision = "bf16"}),
                        of({.name = "tied", .dropout = 0.1, .vocabulary = Case::Vocabulary::tied})})
    check(c, [&] { return make_inputs(c); });
  check(drawing, [&] { return inputs_with(drawing, [] { return std::make_shared<Drawing>(); }); });
}

// The first replica's error is thrown, once; the step can then be taken as if nothing had happened.
TEST_F(ReplicasRules, AnErrorOnTheirThreadsReachesTheCallerOnce) {
  const auto c = of({.name = "errors"});
  const auto trouble = std::make_shared<Trouble>();
  const auto inputs = [&] { return inputs_with(c, [&] { return std::make_shared<Fragile>(trouble); }); };
  const auto weights_after = [&](bool troubled) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(inputs());
    run.loader->start_epoch(0);
    const auto batch = *run.loader->next();
    const auto first = batch.micro.front().sample_ids[0].item<std::int64_t>();
    for (const bool forward : {true, false}) {
      if (!troubled) continue;
      trouble->forward = forward;
      trouble->backward = !forward;
      try {
        run.train_step(batch);
        ADD_FAILURE() << "no error";
      } catch (const DataError& error) {
        EXPECT_EQ(error.what(), fmt::format("{} pass of sample {}", forward ? "forward" : "backward", first));
      }
      run.optimizer->zero_grad();
      trouble->forward = trouble->backward = false;
    }
    run.train_step(batch);
    return gathered(run.model->weights(), booster.mesh());
  };
  const auto expected = weights_after(false);
  for (const auto& [name, value] : weights_after(true)) EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
}

// Running statistics are those of the first replica's samples, also under recomputation, and an evaluation uses them on
// every replica.
TEST_F(ReplicasRules, BuffersAreTheFirstReplicas) {
  for (const bool recompute : {false, true}) {
    const auto c = of({.name = "buffers", .recompute = recompute}), alone = of(c, "replicas = 1");
    const MakeBlock norm = [] { return std::make_shared<Norm>(6, false); };
    Booster booster(world(), make_plugin(c), make_options(c)), one(world(), make_plugin(alone), make_options(alone));
    auto run = booster.boost(inputs_with(c, norm)), expected = one.boost(inputs_with(alone, norm));
    run.loader->start_epoch(0);
    const auto batch = *run.loader->next();
    auto first = batch.micro.front();  // 8 samples: 3, 3 and 2
    first.inputs = {{"pixel_values", first.inputs.front().narrow(0, 0, 3)}};
    first.sample_ids = first.sample_ids.narrow(0, 0, 3);
    expected.model->forward(first);
    run.forward_backward(batch);
    const auto got = nn::buffers(run.model->module()), want = nn::buffers(expected.model->module());
    ASSERT_EQ(got.size(), 3U);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LE((got[i].value - want[i].value).abs().max().item<double>(), 1e-12) << got[i].placement.name;
    const at::NoGradGuard no_grad;
    for (auto* model : {run.model.get(), expected.model.get()}) model->train(false);
    const auto difference =
        run.model->forward(batch.micro.front()).at(0) - expected.model->forward(batch.micro.front()).at(0);
    EXPECT_LE(difference.abs().max().item<double>(), 1e-12);
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(ReplicasRules, WhatTheyCannotHonourIsRefused) {
  const auto c = of({.name = "refused"});
  const auto boost = [&](BoostInputs inputs) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(std::move(inputs));
    run.loader->start_epoch(0);
    const auto batch = *run.loader->next();
    const auto& micro = batch.micro.front();
    run.criterion(run.model->forward(micro), micro).backward();  // not the optimizer's
    run.optimizer->step(0.1);
  };
  auto without_make = make_inputs(c);
  without_make.source.make = nullptr;
  RunSettings two_ranks;
  two_ranks.world_size = 2;
  two_ranks.device = "cpu";
  const std::pair<std::function<void()>, const char*> refused[]{
      {[&] { boost(without_make); }, "set ModelSource::make"},
      {[&] { boost(inputs_with(c, [] { return std::make_shared<Norm>(6, true); })); }, "model.sync_batch_norm"},
      {[&] { boost(make_inputs(c)); }, "call BoostedOptimizer::backward()"},
      {[&] { make_plugin(c)->check(two_ranks); }, "parallel.plugin = \"torch_ddp\""},
      {[&] { make_plugin(of(c, "replicas = 65")); }, "replicas = 65"}};
  for (const auto& [call, remedy] : refused)
    EXPECT_NE(error_of(call).find(remedy), std::string::npos) << error_of(call);
}

}  // namespace
}  // namespace trireme::tests
