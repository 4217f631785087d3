// An axis along which some parameters are sharded and the others are replicated, such as one of experts: each gradient
// is reduced by the ranks that have its parameter, in every stage of ZeRO. So also where tensor-parallel ranks have
// parts of these parameters: initial values, the norm, training, checkpoints and exported files.
#include "zero/reducing_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/train_state.h"
#include "core/comm/host_values.h"
#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/optim/optimizers.h"
#include "tests/ranks/world.h"
#include "tests/unit/checkpoint/folder.h"
#include "zero/buckets.h"
#include "zero/gemini/gathered_model.h"
#include "zero/sharded_optimizer.h"

namespace trireme::tests {
namespace {

constexpr int kParts = 2;  // in which the ranks divide the experts
constexpr std::int64_t kExperts = 3, kIn = 4, kHidden = 5, kOut = 3, kSamples = 2, kSteps = 3;
constexpr double kRate = 0.3, kMaxNorm = 0.2;

/// A matrix for each expert, [experts, hidden, out]. A rank's samples go through all that it holds.
class Experts : public nn::Block {
 public:
  Experts() { declare("weight", weight, {kExperts, kHidden, kOut}, nn::Init::normal(0, 0.5)); }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context&) override {
    if (tensor.size() > 1 && inputs[0].requires_grad())
      inputs[0].register_hook([this](const at::Tensor& part) {
        auto sum = part.clone();
        tensor.all_reduce(sum);
        return sum;
      });
    return {at::matmul(inputs[0], weight.sum(0))};
  }
  at::Tensor weight;
  comm::Group tensor;  ///< its ranks hold the other outputs
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

/// Trains all experts in one process: the samples of each of `ranks` go through one part of the experts.
Trained by_hand(int ranks, std::uint64_t seed) {
  Trained out;
  Routed model;
  nn::materialize(model, seed, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(model);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    at::Tensor loss;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto hidden = model.blocks()[0]->forward({inputs_of(rank, step)}, {}).front();
      const auto [begin, end] = shard::split(kExperts, kParts, rank % kParts);
      const auto part = at::matmul(hidden, model.experts->weight.slice(0, begin, end).sum(0)).square().sum();
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

/// The weights in a checkpoint and in an exported file, both of which all ranks write together.
void expect_saved(const std::vector<shard::Slice>& weights, comm::Mesh& mesh, const Trained& expected) {
  const checkpoint::TestFolder own;
  const auto folder = comm::all_gather_text(world().group(), own.path()).front();
  checkpoint::CheckpointContents contents;
  contents.record.progress.global_step = kSteps;
  contents.weights = weights;
  const checkpoint::Checkpoint saved(checkpoint::save_checkpoint(folder, contents, 1, mesh));
  checkpoint::write_slices(folder + "/exported", weights, mesh);
  world().group().barrier();
  const checkpoint::SafeTensors exported(folder + "/exported");
  for (const auto& [name, wanted] : expected.weights) {
    EXPECT_LE((exported.read(name) - wanted).abs().max().item<double>(), 1e-9) << name;
    // In another layout: the middle dim of the experts, the last one of the others.
    auto placement = shard::Placement::whole(name, wanted.sizes().vec());
    const auto dim = wanted.dim() / 2;
    placement.cut(dim, {shard::split(wanted.size(dim), world().size(), world().rank())});
    const auto part = saved.weights().read(name, placement), other = placement.slice(wanted);
    if (part.numel() > 0) {
      EXPECT_LE((part - other).abs().max().item<double>(), 1e-9) << name;
    }
  }
  world().group().barrier();  // before rank 0 removes its folder
}

class ReducingRanksTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ReducingRanksTest, ShardedAlongAnAxisThatReplicatesTheOthers) {
  const auto [stage, tensor] = GetParam();
  if (world().size() % (kParts * tensor) != 0) GTEST_SKIP();
  const int ranks = world().size() / tensor, mine = world().rank() / tensor;  // that have samples of their own
  const comm::AxisKind experts{.name = "ep",
                               .title = "expert-parallel ranks",
                               .splits_samples = true,
                               .sums_gradients = true,
                               .partitions_state = true,
                               .sums_losses = true};
  comm::Mesh mesh(world(), {{"dp", ranks / kParts}, {experts, kParts}, {"tp", tensor}});
  BoostOptions options{.train = {.precision = "fp64", .max_norm = kMaxNorm}, .optimizer = {.lr = kRate}, .seed = 7};
  options.optimizer.method = optim::sgd();

  const auto model = std::make_shared<Routed>();
  model->experts->tensor = mesh.group("tp");
  model->experts->cut("weight", 0, {shard::split(kExperts, kParts, mesh.coordinate("ep"))}, "ep");
  if (tensor > 1) model->experts->cut("weight", 2, {shard::split(kOut, tensor, mesh.coordinate("tp"))}, "tp");
  const zero::ReductionPlan reduction(
      *model, mesh, stage == 0 ? std::vector<std::string>{} : mesh.axes(&comm::AxisKind::partitions_state));
  const zero::BucketRules rules{.elements = 16, .ranks = &reduction};
  auto buckets = stage == 3 ? zero::plan_chunks(*model, rules) : zero::plan_buckets(nn::declarations(*model), rules);
  std::set<int> sizes;
  for (const auto& bucket : buckets) sizes.insert(bucket.ranks->everyone.size());
  EXPECT_EQ(sizes, (std::set<int>{ranks / kParts, ranks}));
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

  Routed initial;
  nn::materialize(initial, options.seed, at::kDouble, at::kCPU);
  for (auto& [placement, value] : boosted->weights())
    for (const auto& whole : nn::parameters(initial))
      if (whole.name == placement.name) {
        EXPECT_TRUE(value.equal(placement.slice(whole.value))) << whole.name;
      }
  const auto expected = by_hand(ranks, options.seed);
  boosted->train(true);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    data::Batch batch;
    batch.inputs.set("x", inputs_of(mine, step));
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
  expect_saved(boosted->weights(), mesh, expected);
}

INSTANTIATE_TEST_SUITE_P(Stages, ReducingRanksTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 2)));

}  // namespace
}  // namespace trireme::tests
