// How the Booster applies its options, which ones it refuses, and how it reports wrong calls.
#include "core/booster/booster.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/booster/local_model.h"
#include "core/booster/precision.h"
#include "core/nn/adapt.h"
#include "core/nn/block.h"
#include "core/nn/layers/criterion.h"
#include "core/nn/layers/linear.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizers.h"

namespace trireme {
namespace {

/// A plugin without parallelism.
class Bare : public PluginOf<NoOptions> {
 public:
  Bare() : PluginOf({"plugin.bare", ""}) {}
  std::string summary() const override { return ""; }
  void check(const RunSettings&) const override {}
  comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource source, const BoostOptions& options, comm::Mesh& mesh, const Log& log) override {
    const auto device = mesh.world().device();
    auto parameters = materialize_whole(source, options, device, log);
    auto model = std::make_unique<LocalModel>(source.model, std::move(parameters), options, device);
    auto optimizer = std::make_unique<LocalOptimizer>(model->parameters(), options, mesh);
    return {.model = std::move(model), .optimizer = std::move(optimizer)};
  }
};

class Forgetful : public Bare {
 public:
  BoostResult boost(ModelSource, const BoostOptions&, comm::Mesh&, const Log&) override { return {}; }
};

class ZeroDataset : public data::Dataset {
 public:
  std::int64_t size() const override { return 8; }
  std::optional<data::Sample> get(std::int64_t, std::int64_t, bool) override {
    return data::Sample{{{"x", at::empty({3, 2, 2})}}, data::class_label(0)};
  }
};

BoostInputs zero_inputs() {
  return {.source = {.model = nn::adapt(torch::nn::Sequential(torch::nn::Linear(2, 3)))},
          .task = task_of([](const nn::Tensors& outputs, const data::Batch&) { return outputs[0].sum(); }),
          .data = std::make_shared<ZeroDataset>()};
}

TEST(Booster, AUsersWeightIsSummedOverTheGlobalBatch) {
  const auto world = launch();
  Booster booster(*world, std::make_unique<Bare>(), {.train = {.global_batch = 4, .micro_batch = 2, .shuffle = false}});
  auto inputs = zero_inputs();
  inputs.task = task_of([](const nn::Tensors& outputs, const data::Batch&) { return outputs[0].sum(); },
                        [](const data::Batch& batch) { return batch.sample_ids.sum().to(at::kDouble); });
  auto run = booster.boost(std::move(inputs));
  run.loader->start_epoch(0);
  const auto step = *run.loader->next();
  for (const auto& micro : step.micro) EXPECT_EQ(micro.global_weight.item<double>(), 0 + 1 + 2 + 3);
  // Batches of another loader get it by set_global_weight().
  const auto other = run.evaluation_loader(std::make_shared<ZeroDataset>(), 4);
  other->start_epoch(0);
  auto batch = *other->next();
  EXPECT_EQ(batch.micro.front().global_weight.item<double>(), 4);
  run.set_global_weight(batch);
  EXPECT_EQ(batch.micro.front().global_weight.item<double>(), 0 + 1 + 2 + 3);
}

class Line : public nn::Block {
 public:
  Line() : linear_(register_module("linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = 2, .out = 3}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {linear_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

/// A model whose blocks may all read a padding mask.
class Masked : public nn::Model {
 public:
  Masked() { add_block(register_module("line", std::make_shared<Line>())); }
  std::vector<std::string> side_input_names() const override { return {"mask"}; }
};

TEST(Booster, EachRunHasInputsOfItsOwn) {
  const auto world = launch();
  Booster booster(*world, std::make_unique<Bare>(), {.train = {.global_batch = 4}});
  auto inputs = zero_inputs();
  inputs.source.model = std::make_shared<Masked>();
  const auto masked = booster.boost(std::move(inputs)), plain = booster.boost(zero_inputs());
  EXPECT_EQ(masked.loader_options().side_inputs, std::vector<std::string>{"mask"});
  EXPECT_EQ(plain.loader_options().side_inputs, std::vector<std::string>());
}

/// Copies of a model's weights, in its order.
std::vector<at::Tensor> copies(BoostedModel& model) {
  std::vector<at::Tensor> out;
  for (const auto& slice : model.state_dict()) out.push_back(slice.value.clone());
  return out;
}

TEST(Booster, AModelAloneIsForLoopsWithALossOfTheirOwn) {
  const auto world = launch();
  BoostOptions options{.train = {.precision = "fp64", .max_norm = 0, .ema_decay = 0.5}};
  options.optimizer = {.lr = 0.5, .method = optim::sgd({})};
  Booster booster(*world, std::make_unique<Bare>(), options);
  auto run = booster.boost(ModelSource{.model = nn::adapt(torch::nn::Sequential(torch::nn::Linear(2, 3)))});
  const auto before = copies(*run.model);
  const data::Batch batch{.inputs = {{"x", at::ones({4, 2}, at::kDouble)}}};
  // The loss is the mean of the outputs over 4 samples, so each element has the gradient 1.
  run.optimizer->backward(run.model->forward(batch).front().sum(), at::full({}, 4., at::kDouble));
  run.optimizer->step(0.5);
  run.average->update(++run.step);
  const auto after = copies(*run.model);
  const auto in_use = run.use_average();
  const auto averaged = copies(*run.model);
  ASSERT_EQ(before.size(), 2u);  // the weight and the bias
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::allclose(after[i], before[i] - 0.5, 0, 1e-12)) << i;
    EXPECT_TRUE(averaged[i].lt(before[i]).logical_and(averaged[i].gt(after[i])).all().item<bool>()) << i;
  }
}

/// A model that reads its outputs no more once it has returned them.
class Releasing : public nn::Model {
 public:
  Releasing() { add_block(register_module("line", std::make_shared<Line>())); }
  std::vector<std::string> input_names() const override { return {"x"}; }
  bool releases_outputs() const override { return true; }
};

TEST(Booster, OnlyOutputsThatNobodyReadsMayBeOverwritten) {
  const auto world = launch();
  Booster booster(*world, std::make_unique<Bare>(), {.train = {.global_batch = 4, .micro_batch = 4}});
  for (const bool releases : {true, false}) {
    auto inputs = zero_inputs();
    if (releases) inputs.source.model = std::make_shared<Releasing>();
    auto run = booster.boost(std::move(inputs));
    run.loader->start_epoch(0);
    const auto batch = *run.loader->next();
    std::string called;
    const auto calls = [&called](const char* name) {
      return [&called, name](const nn::Tensors& outputs, const data::Batch&) {
        called += name;
        return outputs[0].sum();
      };
    };
    std::vector<nn::Tensors> outputs;
    run.criterion = Criterion(calls("plain "), {.overwriting = calls("overwriting ")});
    run.forward_backward(batch);
    run.forward_backward(batch, &outputs);
    run.criterion = calls("own");  // a program's may read the outputs
    run.forward_backward(batch);
    EXPECT_EQ(called, releases ? "overwriting plain own" : "plain plain own");
  }
}

TEST(Booster, GoesThroughTheEpochsThatAreLeft) {
  const auto world = launch();
  struct Row {
    std::int64_t step, epochs;
    std::optional<std::int64_t> max_steps;
    std::vector<std::pair<std::int64_t, std::size_t>> expected;  ///< epochs, and how many batches of each
  };
  // Eight samples in steps of 3, 3 and 2.
  for (const auto& [step, epochs, max_steps, expected] : std::vector<Row>{{0, 2, {}, {{0, 3}, {1, 3}}},
                                                                          {2, 2, {}, {{0, 1}, {1, 3}}},
                                                                          {3, 2, {}, {{1, 3}}},
                                                                          {4, 3, 8, {{1, 2}, {2, 2}}},
                                                                          {6, 2, {}, {}},
                                                                          {5, 3, 4, {}}}) {
    SCOPED_TRACE(step);
    Booster booster(*world, std::make_unique<Bare>(),
                    {.train = {.epochs = epochs, .max_steps = max_steps, .global_batch = 3}});
    auto run = booster.boost(zero_inputs());
    run.step = step;
    std::vector<std::pair<std::int64_t, std::size_t>> got;
    for (const auto epoch : run.epochs()) {
      got.emplace_back(epoch.number(), 0);
      for (const auto& batch : epoch) got.back().second += batch.global_samples > 0 ? 1 : 0;
    }
    EXPECT_EQ(got, expected);
  }
}

TEST(Booster, LoadersFollowTheOptions) {
  const auto world = launch();
  Booster booster(*world, std::make_unique<Bare>(),
                  {.train = {.global_batch = 4, .micro_batch = 3, .shuffle = false, .drop_last = true},
                   .loading = {.workers = 3, .prefetch = 5},
                   .seed = 9});
  const auto run = booster.boost(zero_inputs());
  const auto& training = run.loader->options();
  EXPECT_EQ(training.global_batch, 4);
  EXPECT_EQ(training.micro_batch, 3);
  EXPECT_EQ(training.seed, 9U);
  EXPECT_FALSE(training.shuffle);
  EXPECT_TRUE(training.drop_last);
  EXPECT_TRUE(training.augment);
  const auto evaluation = run.evaluation_loader(std::make_shared<ZeroDataset>(), 2)->options();
  for (const auto& options : {training, evaluation}) {
    EXPECT_EQ(options.workers, 3);
    EXPECT_EQ(options.prefetch, 5);
  }
  EXPECT_TRUE(evaluation.evaluation);
  EXPECT_FALSE(evaluation.augment);
}

TEST(Booster, TheScheduleSpansTheTraining) {
  const auto world = launch();
  const auto lr_of = [&](BoostOptions options) {  // 8 samples: 2 steps an epoch
    options.train.global_batch = 4;
    options.optimizer.lr = 1;
    options.lr_schedule.curve = optim::linear();
    Booster booster(*world, std::make_unique<Bare>(), options);
    return booster.boost(zero_inputs()).lr_schedule->lr(1);
  };
  EXPECT_DOUBLE_EQ(lr_of({.train = {.epochs = 5}}), 0.9);
  EXPECT_DOUBLE_EQ(lr_of({.train = {.epochs = 5, .max_steps = 4}}), 0.75);
}

// Options that a program sets obey the rules of the TOML file, checked before anything is communicated or drawn.
TEST(Booster, RefusesOptionsThatBreakARule) {
  const auto world = launch();
  const std::vector<std::pair<BoostOptions, const char*>> cases{
      {{.optimizer = {.lr = -1}}, "optimizer.lr = -1.0: it must be at least 0"},
      {{.optimizer = {.lr = NAN}}, "optimizer.lr = nan: it must be a finite number"},
      {{.optimizer = {.method = optim::sgd({.momentum = 1})}}, "optimizer.momentum = 1.0: it must be at least 0"},
      {{.optimizer = {.method = optim::sgd({.nesterov = true})}}, "needs momentum above 0"},
      {{.optimizer = {.no_decay = {"bias"}}}, "has no effect while weight_decay is 0"},
      {{.train = {.epochs = 0}}, "train.epochs = 0: it must be at least 1"},
      {{.train = {.max_steps = 0}}, "train.max_steps = 0: it must be at least 1"},
      {{.train = {.global_batch = 0}}, "train.global_batch = 0: it must be at least 1"},
      {{.train = {.global_batch = 4, .micro_batch = 8}}, "train.micro_batch = 8: is more than global_batch = 4"},
      {{.train = {.precision = "fp8"}}, "train.precision = \"fp8\": must be one of fp32, tf32, bf16, fp16, fp64"},
      {{.train = {.max_norm = -1}}, "train.max_norm = -1.0: it must be at least 0"},
      {{.train = {.loss_scale = {.initial_scale = 8}}},
       "train.initial_scale = 8.0: has no effect with precision = \"fp32\""},
      {{.lr_schedule = {.curve = optim::step_drops()}}, "the program's options: [schedule] step_size: is required"},
      {{.lr_schedule = {.curve = optim::cosine({.min_lr_factor = 2})}}, "schedule.min_lr_factor = 2.0: it must be"},
      {{.loading = {.workers = 0}}, "data.workers = 0: it must be at least 1"},
      {{.loading = {.prefetch = 0}}, "data.prefetch = 0: it must be at least 1"}};
  for (const auto& [options, says] : cases) {
    SCOPED_TRACE(says);
    try {
      const Booster booster(*world, std::make_unique<Bare>(), options);
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

template <class Call>
std::string usage_error(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

// fp32 is float32 in every operation; TF32 must be requested.
TEST(Precision, Tf32IsOptIn) {
  EXPECT_TRUE(Precision::parse("tf32").tf32);
  EXPECT_EQ(Precision::parse("tf32").parameters, at::kFloat);
  EXPECT_FALSE(Precision::parse("tf32").autocasts());
  EXPECT_FALSE(Precision::parse("fp32").tf32);
  EXPECT_THROW(set_float32_matmul_precision(Precision::parse("tf32"), at::kCPU), ConfigError);
  const auto& context = at::globalContext();
  for (const char* name : {"tf32", "bf16", "fp32"}) {
    set_float32_matmul_precision(Precision::parse(name), c10::Device(at::kCUDA, 0));
    EXPECT_EQ(context.allowTF32CuBLAS(), Precision::parse(name).tf32) << name;
    EXPECT_EQ(context.allowTF32CuDNN(), Precision::parse(name).tf32) << name;
  }
}

// A wrong call is reported as the program's error, not as an internal one.
TEST(Booster, ReportsWrongCalls) {
  const auto world = launch();
  EXPECT_NE(usage_error([&] { Booster(*world, nullptr, {}); }).find("the plugin is null"), std::string::npos);
  Booster booster(*world, std::make_unique<Bare>(), {.train = {.global_batch = 4}});
  EXPECT_NE(usage_error([&] { booster.boost(BoostInputs{}); }).find("needs a model, a task and data"),
            std::string::npos);
  Booster with_forgetful(*world, std::make_unique<Forgetful>(), {.train = {.global_batch = 4}});
  EXPECT_NE(usage_error([&] { with_forgetful.boost(zero_inputs()); }).find("returned no model or no optimizer"),
            std::string::npos);
  auto run = booster.boost(zero_inputs());
  EXPECT_NE(usage_error([&] { run.loader->next(); }).find("call start_epoch(epoch) first"), std::string::npos);
  EXPECT_NE(usage_error([&] { run.save("/none", 0); }).find("at least one checkpoint is kept"), std::string::npos);
  EXPECT_NE(usage_error([&] { run.loader->start_epoch(0, 3); }).find("this one has 2 steps"), std::string::npos);
  const auto model = nn::adapt(torch::nn::Sequential(torch::nn::Linear(2, 3)));
  const auto x = at::ones({1, 2});
  EXPECT_NE(usage_error([&] {
              model->forward({x, x}, {});
            }).find("takes one tensor, but 2 were given"),
            std::string::npos);
  EXPECT_NE(usage_error([&] { nn::cross_entropy(x, at::zeros({3}, at::kLong)); }).find("[1, 2] and [3]"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
