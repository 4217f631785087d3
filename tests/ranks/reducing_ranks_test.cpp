// An axis along which some parameters are sharded and the others are replicated, such as one of experts: each gradient
// is reduced by the ranks that have its parameter, in every stage of ZeRO.
#include "zero/reducing_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/optim/sgd.h"
#include "tests/ranks/world.h"
#include "zero/gemini/chunks.h"
#include "zero/gemini/gathered_model.h"
#include "zero/sharded_optimizer.h"

namespace trireme::tests {
namespace {

constexpr int kExperts = 2;
constexpr std::int64_t kIn = 4, kHidden = 5, kOut = 3, kSamples = 2, kSteps = 3;
constexpr double kRate = 0.3, kMaxNorm = 0.2;

/// A matrix for each expert, [experts, hidden, out]. A rank's samples go through the first one that it holds.
class Experts : public nn::Block {
 public:
  Experts() { declare("weight", weight, {kExperts, kHidden, kOut}, nn::Init::normal(0, 0.5)); }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context&) override {
    return {at::matmul(inputs[0], weight.select(0, 0))};
  }
  at::Tensor weight;
};

class Trunk : public nn::Block {
 public:
  Trunk()
      : linear_(
            register_module("linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = kIn, .out = kHidden}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {linear_->forward(inputs[0], context).tanh()};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

class Routed : public nn::Model {
 public:
  Routed() {
    add_block(register_module("trunk", std::make_shared<Trunk>()));
    experts = register_module("experts", std::make_shared<Experts>());
    add_block(experts);
    finish();
  }
  std::vector<std::string> input_names() const override { return {"x"}; }
  std::shared_ptr<Experts> experts;
};

at::Tensor inputs_of(int rank, std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank + 10 * step));
  return at::randn({kSamples, kIn}, generator, at::kDouble);
}

struct Trained {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> norms;
};

/// Trains all experts in one process: rank r's samples go through expert r % kExperts.
Trained by_hand(int ranks, std::uint64_t seed) {
  Trained out;
  Routed model;
  nn::materialize(model, seed, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(model);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    at::Tensor loss;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto hidden = model.blocks()[0]->forward({inputs_of(rank, step)}, {}).front();
      const auto part = at::matmul(hidden, model.experts->weight.select(0, rank % kExperts)).square().sum();
      loss = loss.defined() ? loss + part : part;
    }
    (loss / (ranks * kSamples)).backward();
    const at::NoGradGuard no_grad;
    double squares = 0;
    for (const auto& p : parameters) squares += p.value.grad().square().sum().item<double>();
    out.norms.push_back(std::sqrt(squares));
    for (auto& p : parameters) {
      p.value.sub_(kRate * std::min(1.0, kMaxNorm / (out.norms.back() + 1e-6)) * p.value.grad());
      p.value.mutable_grad() = at::Tensor();
    }
  }
  for (const auto& p : parameters) out.weights[p.name] = p.value.detach();
  return out;
}

class ReducingRanksTest : public testing::TestWithParam<int> {};

TEST_P(ReducingRanksTest, ShardedAlongAnAxisThatReplicatesTheOthers) {
  const int stage = GetParam(), ranks = world().size();
  if (ranks % kExperts != 0) GTEST_SKIP();
  const comm::AxisKind experts{.name = "ep",
                               .title = "expert-parallel ranks",
                               .splits_samples = true,
                               .sums_gradients = true,
                               .partitions_state = true,
                               .sums_losses = true};
  comm::Mesh mesh(world(), {{"dp", ranks / kExperts}, {experts, kExperts}});
  BoostOptions options{.train = {.precision = "fp64", .max_norm = kMaxNorm}, .optimizer = {.lr = kRate}, .seed = 7};
  options.optimizer.method = optim::sgd();

  const auto model = std::make_shared<Routed>();
  const auto expert = mesh.coordinate("ep");
  model->experts->cut("weight", 0, {{expert, expert + 1}}, "ep");
  const zero::ReductionPlan reduction(
      *model, mesh, stage == 0 ? std::vector<std::string>{} : mesh.axes(&comm::AxisKind::partitions_state));
  const zero::BucketRules rules{.elements = 16, .ranks = &reduction};
  auto buckets = stage == 3 ? zero::plan_chunks(*model, rules) : zero::plan_buckets(nn::declarations(*model), rules);
  std::set<int> sizes;
  for (const auto& bucket : buckets) sizes.insert(bucket.ranks->everyone.size());
  EXPECT_EQ(sizes, (std::set<int>{ranks / kExperts, ranks}));
  std::vector<zero::Residency> residencies(buckets.size(), {.replicated = stage < 3});
  auto weights = zero::make_weights({.model = model}, zero::weights_options(options, true, at::kCPU),
                                    std::move(buckets), std::move(residencies), Log(world().rank()));
  const zero::ShardedOptions sharded{.partition_gradients = stage >= 2};
  std::unique_ptr<zero::ShardedModel> boosted;
  if (stage == 3)
    boosted = std::make_unique<zero::GatheredModel>(model, std::move(weights), options, sharded, at::kCPU, 0, nullptr);
  else
    boosted = std::make_unique<zero::ShardedModel>(model, std::move(weights), options, sharded, at::kCPU);
  zero::ShardedOptimizer optimizer(*boosted, options, {reduction.norm_axes()}, mesh);

  const auto expected = by_hand(ranks, options.seed);
  boosted->train(true);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    data::Batch batch;
    batch.inputs.set("x", inputs_of(world().rank(), step));
    batch.sample_ids = at::tensor({0, 1}, at::kLong);
    const auto loss = boosted->forward(batch).front().square().sum();
    optimizer.backward(loss, at::tensor(static_cast<double>(ranks * kSamples), at::kDouble));
    EXPECT_NEAR(optimizer.step(kRate).grad_norm.item<double>(), expected.norms[static_cast<std::size_t>(step)], 1e-9);
    optimizer.zero_grad();
  }
  for (auto& [placement, value] : boosted->weights()) {
    const auto wanted = placement.slice(expected.weights.at(placement.name));
    if (wanted.numel() > 0) {
      EXPECT_LE((value - wanted).abs().max().item<double>(), 1e-9) << placement.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ReducingRanksTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace trireme::tests
