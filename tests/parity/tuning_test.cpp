// Tuning in every layout: a training is bitwise the same with and without it, and candidates that compute something
// else are rejected.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/block.h"
#include "core/tune/optimize.h"
#include "core/tune/run_snapshot.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

using tune::Switch;
using tune::SwitchInputs;

/// What planted candidates change.
struct Faults {
  bool drops_bias_gradient = false, keeps_mask = false, freezes_lr = false;
};

/// The model, with the masks of its first step if a fault asks for it.
class FaultyModel final : public BoostedModel {
 public:
  FaultyModel(std::unique_ptr<BoostedModel> model, const Faults& faults) : model_(std::move(model)), faults_(faults) {}
  at::Tensor forward_backward(const data::StepBatch& batch, const Criterion& criterion, BoostedOptimizer& optimizer,
                              std::vector<nn::Tensors>* outputs) override {
    auto same = batch;
    if (first_step_ < 0) first_step_ = batch.micro.front().step;
    if (faults_.keeps_mask)
      for (auto& micro : same.micro) micro.step = first_step_;
    return model_->forward_backward(same, criterion, optimizer, outputs);
  }
  nn::Tensors forward(const data::Batch& batch) override { return model_->forward(batch); }
  bool is_pipeline() const override { return model_->is_pipeline(); }
  ScopeGuard no_sync() override { return model_->no_sync(); }
  bool reduces_each_microbatch() const override { return model_->reduces_each_microbatch(); }
  void train(bool on) override { model_->train(on); }
  nn::Model& module() override { return model_->module(); }
  std::vector<shard::Slice> weights() override { return model_->weights(); }
  std::vector<shard::Slice> current_weights() override { return model_->current_weights(); }
  void weights_changed() override { model_->weights_changed(); }
  std::vector<shard::Slice> gradients() override { return model_->gradients(); }
  ModelReport report() const override { return model_->report(); }

 private:
  std::unique_ptr<BoostedModel> model_;
  const Faults& faults_;
  std::int64_t first_step_ = -1;
};

/// The optimizer, with the learning rate of its first step if a fault asks for it.
class FaultyOptimizer final : public BoostedOptimizer {
 public:
  FaultyOptimizer(std::unique_ptr<BoostedOptimizer> optimizer, const Faults& faults)
      : optimizer_(std::move(optimizer)), faults_(faults) {}
  void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) override {
    optimizer_->backward(loss_sum, global_weight);
  }
  void zero_grad() override { optimizer_->zero_grad(); }
  std::vector<shard::Slice> state() override { return optimizer_->state(); }
  optim::LossScaler& scaler() override { return optimizer_->scaler(); }
  OptimizerReport report() const override { return optimizer_->report(); }

 protected:
  StepResult apply_gradients(double lr) override {
    if (first_lr_ < 0) first_lr_ = lr;
    return optimizer_->step(faults_.freezes_lr ? first_lr_ : lr);
  }

 private:
  std::unique_ptr<BoostedOptimizer> optimizer_;
  const Faults& faults_;
  double first_lr_ = -1;
};

tune::Twin twin_of(Case c) {
  c.precision = "fp64";
  tune::Twin twin;
  twin.booster = std::make_unique<Booster>(world(), make_plugin(c), make_options(c));
  twin.run = twin.booster->boost(make_inputs(c));
  return twin;
}

struct Trained {
  std::vector<double> losses;
  Named weights, optimizer;
};

/// Trains the case. `before`: called once, with the first batch.
template <class Before>
Trained trained(const Case& c, Before before) {
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  Trained out;
  for_steps(c, run, [&](const data::StepBatch& batch) {
    if (run.step == 0) before(run, batch);
    out.losses.push_back(run.train_step(batch).loss.item<double>());
  });
  out.weights = gathered(run.model->state_dict(), booster.mesh());
  out.optimizer = gathered(run.optimizer->state(), booster.mesh());
  return out;
}

void expect_same_bits(const Trained& got, const Trained& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  for (const auto& [of_got, of_expected] :
       {std::pair{&got.weights, &expected.weights}, std::pair{&got.optimizer, &expected.optimizer}}) {
    EXPECT_EQ(of_got->size(), of_expected->size());
    for (const auto& [name, value] : *of_expected) EXPECT_TRUE(at::equal(of_got->at(name), value)) << name;
  }
}

class Tuned : public testing::TestWithParam<Case> {};

/// With the choices that the tuner has found, from the start and found in the first step.
TEST_P(Tuned, TrainsTheSameBitsAsWithTheSameChoicesFromTheStart) {
  const auto& c = GetParam();
  const auto reset_process = [threads = at::get_num_threads()] {
    at::globalContext().setUserEnabledMkldnn(true);
    at::set_num_threads(threads);
  };
  tune::Tuning tuning;
  const tune::OptimizeOptions options{.twin = [&c] { return twin_of(c); }};
  const auto now = trained(c, [&](Boosted& run, const data::StepBatch& batch) {
    const auto sent = world().comm_stats().totals().size();
    tuning = tune::optimize(run, batch, options);
    EXPECT_EQ(world().comm_stats().totals().size(), sent);
    EXPECT_EQ(run.step, 0);
  });
  EXPECT_TRUE(c.precision == "bf16" || tuning.notes.empty()) << tuning.notes.front();
  EXPECT_FALSE(tuning.candidates.empty());
  reset_process();
  const auto from_start = trained(c, [&](Boosted& run, const data::StepBatch&) {
    EXPECT_TRUE(tune::select(tune::switches_of(run, options), tuning.chosen).empty());
  });
  expect_same_bits(now, from_start);
  reset_process();
  if (tuning.same_bits) expect_same_bits(now, trained(c, [](Boosted&, const data::StepBatch&) {}));
}

TEST_P(Tuned, RejectsWhatComputesSomethingElse) {
  auto c = GetParam();
  c.dropout = 0.2;
  Faults faults;
  tune::Switches switches("switch");
  const auto add = [&](const std::string& name, bool Faults::*fault) {
    switches.add(name, [&faults, name, fault](const SwitchInputs&) -> std::optional<Switch> {
      return Switch{.name = name,
                    .choices = {{"no", [&faults, fault] { faults.*fault = false; }},
                                {"yes", [&faults, fault] { faults.*fault = true; }}}};
    });
  };
  add("bias_gradient", &Faults::drops_bias_gradient);
  add("mask", &Faults::keeps_mask);
  add("lr", &Faults::freezes_lr);

  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  const std::string bias = "vit.encoder.layer.1.output.dense.bias";
  std::size_t block = 0;
  for (const auto& [name, blocks] : nn::users(run.model->module()))
    if (name == bias) block = blocks.front();
  block = static_cast<std::size_t>(
      comm::reduce_value(world().group(), static_cast<std::int64_t>(block), comm::ReduceOp::max));
  ASSERT_GT(block, 0U);
  for (auto& parameter : nn::parameters(run.model->module()))
    if (parameter.name == bias)
      parameter.value.register_hook(
          [&faults](const at::Tensor& gradient) { return faults.drops_bias_gradient ? gradient * 0 : gradient; });
  run.model = std::make_unique<FaultyModel>(std::move(run.model), faults);
  run.optimizer = std::make_unique<FaultyOptimizer>(std::move(run.optimizer), faults);
  run.loader->start_epoch(0);
  const auto batch = run.loader->next();
  const auto tuning =
      tune::optimize(run, *batch, {.budget_s = 1e9, .switches = switches, .twin = [&c] { return twin_of(c); }});
  ASSERT_EQ(tuning.candidates.size(), 3U);
  EXPECT_TRUE(tuning.chosen.empty());
  for (const auto& candidate : tuning.candidates) {
    EXPECT_EQ(candidate.numbers, tune::NumberClass::wrong) << candidate.name;
    EXPECT_EQ(candidate.verdict.find("rejected: "), 0U) << candidate.verdict;
    if (c.precision == "bf16") continue;  // on some machines its errors are too large for a comparison
    EXPECT_EQ(candidate.verdict.find("rejected: block "), 0U) << candidate.verdict;
    if (candidate.name == "bias_gradient=yes") {
      EXPECT_EQ(candidate.verdict.find(fmt::format("rejected: block {}: the error of its gradient", block)), 0U)
          << candidate.verdict;
    }
    if (candidate.name == "lr=yes") {
      EXPECT_NE(candidate.verdict.find("the change of its weights"), std::string::npos) << candidate.verdict;
    }
  }
}

const Case kSmall{.name = "", .dropout = 0.1, .precision = "fp32"};

std::vector<Case> layouts() {
  auto half = kSmall;
  half.precision = "bf16";
  const auto of = [](const char* plugin, std::vector<Layout> rows) { return cross(plugin, "", rows, {kSmall}); };
  std::vector<Case> out = of("torch_ddp", {{"ddp", ""}});
  for (auto& c : of("low_level_zero", {{"zero1", "stage = 1"}, {"zero2", "stage = 2"}})) out.push_back(c);
  for (auto& c : of("gemini", {{"gemini", ""}})) out.push_back(c);
  for (auto c : of("hybrid_parallel", {{"zero3", "zero_stage = 3"}})) out.push_back(c);
  for (auto c : of("hybrid_parallel", {{"tp2", "tp_size = 2"}})) {
    c.tp = 2;
    out.push_back(c);
  }
  for (auto c : of("hybrid_parallel", {{"pp2", "pp_size = 2\nnum_microbatches = 2"}})) {
    c.pp = 2;
    out.push_back(c);
  }
  for (const auto* plugin : {"torch_ddp", "low_level_zero"})
    for (const auto& c : cross(plugin, "", {{std::string(plugin) + "_bf16", ""}}, {half})) out.push_back(c);
  return tried(out);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Tuned, testing::ValuesIn(layouts()), kCaseName);

}  // namespace
}  // namespace trireme::tests
