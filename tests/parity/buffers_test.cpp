// Buffers are state: running statistics are equal on all ranks after each step, under every plugin; they are saved,
// resumed bit for bit, exported and loaded; recomputation and pipelines update them once a microbatch. The network is a
// user's module with LibTorch's batch normalisation and dropout, whose random draws must be reproduced too.
#include "tests/parity/buffers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "core/base/random.h"
#include "core/booster/run_state.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/weights/weights.h"
#include "core/comm/host_values.h"
#include "core/nn/adapt.h"
#include "core/nn/layers/linear.h"

namespace trireme::tests::buffers {
namespace {

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Linear(kFeatures, 12), BatchNorm1d(12), Dropout(0.3), ReLU(), Linear(12, 12), BatchNorm1d(12),
                    ReLU(), Linear(12, kClassCount));
}

std::shared_ptr<nn::Model> adapted() { return nn::adapt(make_net()); }

/// The tensors of a plain module by name.
Named tensors_of(const torch::nn::Sequential& net) {
  Named out;
  for (const auto& item : net->named_parameters()) out[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) out[item.key()] = item.value();
  return out;
}

/// The reference: the same training in one process, without the engine, on the same device, whose generator draws the
/// dropout. It runs every share of the batch in turn and keeps the running statistics of the first share only.
Named expected(const Named& start, int shares) {
  auto net = make_net();
  net->to(world().device(), at::kDouble);
  const auto tensors = tensors_of(net);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : tensors) at::Tensor(value).copy_(start.at(name));
  }
  for (std::int64_t step = 0; step < kSteps; ++step) {
    Named first;
    net->zero_grad();
    for (int share = 0; share < shares; ++share) {
      Named before;
      for (const auto& item : net->named_buffers()) before[item.key()] = item.value().clone();
      data::LoaderOptions options{.global_batch = kGlobal, .micro_batch = kMicro, .dp_rank = share, .dp_size = shares};
      options.seed = kSeed;
      options.shuffle = true;
      options.dtype = at::kDouble;
      data::Loader loader(std::make_shared<Points>(), options);
      loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
      const auto batch = loader.next();
      for (const auto& micro : batch->micro) {
        auto x = micro.inputs.front().to(world().device());
        std::uint64_t block = 0;
        for (auto& child : *net) {
          auto key = random::mix(kSeed, static_cast<std::uint64_t>(step));
          key = random::mix(key, static_cast<std::uint64_t>(micro.sample_ids[0].item<std::int64_t>()));
          at::manual_seed(random::mix(key, block++));
          x = child.any_forward(x).get<at::Tensor>();
        }
        (nn::cross_entropy(x, micro.targets["labels"].to(x.device())) / kGlobal).backward();
      }
      const at::NoGradGuard no_grad;
      if (share > 0)
        for (auto& item : net->named_buffers()) item.value().copy_(before.at(item.key()));
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad() * kLr);
  }
  return tensors;
}

void expect_bitwise(const Named& got, const Named& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
}

using Buffers = UnderPlugins;

TEST_P(Buffers, EqualThoseOfTheFirstShare) {
  Training training(GetParam(), adapted());
  const auto start = training.state();
  EXPECT_EQ(start.size(), 6U + 4U + 6U);  // weights and biases, those of two norms, and their buffers
  training.train_to(kSteps);
  const auto got = training.state();
  for (const auto& [name, want] : expected(start, world().size() / GetParam().pipeline)) {
    const auto of = want.detach().to(at::kCPU, at::kDouble), have = got.at(name).to(at::kDouble);
    EXPECT_LE((have - of).abs().max().item<double>(), 1e-9) << name;
  }
  EXPECT_GT(got.at("1.num_batches_tracked").item<std::int64_t>(), 0);
  // They are equal on every rank that runs the block, not only on the rank whose copy is saved.
  for (const auto& [placement, value] : nn::buffers(training.run.model->module()))
    EXPECT_TRUE(at::equal(value.cpu(), got.at(placement.name))) << placement.name << " on rank " << world().rank();
}

TEST_P(Buffers, AreResumedBitForBit) {
  const std::filesystem::path folder = shared_path("buffers");
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  world().group().barrier();
  Training straight(GetParam(), adapted());
  straight.train_to(kSteps / 2);
  straight.run.save(folder.string());
  world().group().barrier();
  straight.train_to(kSteps);
  Training resumed(GetParam(), adapted());
  ASSERT_TRUE(resumed.run.load(folder.string()));
  EXPECT_EQ(resumed.run.step, kSteps / 2);
  resumed.train_to(kSteps);
  expect_bitwise(resumed.state(), straight.state());

  // A checkpoint of the previous version has no buffers: they keep their values.
  Training older(GetParam(), adapted());
  older.train_to(1);
  auto contents = contents_of(older.run);
  contents.weights = older.run.model->weights();
  contents.record.progress.global_step = 1;
  const auto stored =
      checkpoint::save_checkpoint((folder / "older").string(), contents, /*keep=*/1, older.booster.mesh());
  const auto path = comm::broadcast_text(world().group(), stored);
  world().group().barrier();
  Training from_older(GetParam(), adapted());
  restore(from_older.run, checkpoint::Checkpoint(path), Log());
  const auto state = from_older.state(), wanted = older.state();
  EXPECT_TRUE(at::equal(state.at("4.weight"), wanted.at("4.weight")));
  EXPECT_EQ(state.at("1.num_batches_tracked").item<std::int64_t>(), 0);
  world().group().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST_P(Buffers, AreExportedAndLoaded) {
  const auto folder = shared_path("export");
  Training training(GetParam(), adapted());
  training.train_to(2);
  checkpoint::save_weights(folder, training.run.model->state_dict(), {}, training.booster.mesh());
  world().group().barrier();
  Training other(GetParam(), adapted(), folder);
  expect_bitwise(other.state(), training.state());
  world().group().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

// A NaN in running statistics would stay there: train.on_nonfinite = "skip" takes back what the step has done to them.
TEST_P(Buffers, AreRestoredAfterASkippedStep) {
  for (const bool skips : {true, false}) {
    auto options = options_of(GetParam());
    options.train.on_nonfinite = skips ? "skip" : "stop";
    Training training(GetParam(), adapted(), "", options);
    training.train_to(1);
    const auto before = training.state();
    training.run.loader->start_epoch(0, 1);
    auto batch = training.run.loader->next();
    ASSERT_TRUE(batch);
    for (auto& micro : batch->micro)
      for (auto& [name, input] : micro.inputs)
        if (!input.is_meta()) input.fill_(NAN);
    const auto step = training.run.train_step(*batch);
    EXPECT_NE(step.result.found_inf.item<double>(), 0);
    bool restored = true;
    for (const auto& [name, value] : training.state()) restored = restored && at::equal(value, before.at(name));
    EXPECT_EQ(restored, skips);
    training.run.loader->start_epoch(0, 1);
    (void)training.run.train_step(*training.run.loader->next());
    bool changed = false;
    for (const auto& [name, value] : training.state()) changed = changed || !at::equal(value, before.at(name));
    EXPECT_TRUE(changed);
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, Buffers, testing::ValuesIn(all_plugs()),
                         [](const auto& test) { return test.param.name; });

/// A block whose buffers, also integer and boolean ones, differ between ranks until they are broadcast at the start.
class LocalNorm : public nn::Block {
 public:
  explicit LocalNorm(int rank)
      : linear_(register_module(
            "linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = kFeatures, .out = kClassCount}))) {
    register_buffer("offset", at::full({2, 3}, rank, at::kDouble));
    register_buffer("flags", at::full({4}, rank == 0, at::kBool));
    register_buffer("count", at::full({}, 7 + rank, at::kLong));
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {linear_->forward(inputs.front(), context)};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

class LocalNormNet : public nn::Model {
 public:
  explicit LocalNormNet(int rank) {
    add_block(register_module("0", std::make_shared<LocalNorm>(rank)));
    finish();
  }
};

TEST(BuffersAtTheStart, AreBroadcastFromRank0) {
  for (const Plug& plug : {Plug{"torch_ddp", "torch_ddp", ""}, Plug{"low_level_zero", "low_level_zero", ""},
                           Plug{"gemini", "gemini", ""}, Plug{"hybrid_parallel", "hybrid_parallel", ""}}) {
    Training training(plug, std::make_shared<LocalNormNet>(world().rank()));
    for (const int step : {0, 1}) {
      training.train_to(step);
      for (const auto& [placement, value] : nn::buffers(training.run.model->module())) {
        const double wanted = placement.name == "0.offset" ? 0 : placement.name == "0.flags" ? 1 : 7;
        EXPECT_TRUE(at::equal(value.to(at::kDouble).cpu(), at::full(value.sizes(), wanted, at::kDouble)))
            << plug.name << " " << placement.name << " on rank " << world().rank();
      }
    }
  }
}

/// broadcast_buffers = false: each rank keeps its own statistics.
TEST(LocalBuffers, DifferBetweenRanks) {
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  for (const auto* plugin : {"torch_ddp", "low_level_zero", "gemini", "hybrid_parallel"}) {
    Training training({plugin, plugin, "broadcast_buffers = false"}, adapted());
    training.train_to(1);
    auto buffers = nn::buffers(training.run.model->module());
    auto high = buffers.front().value.clone(), low = high.clone();
    world().group().all_reduce(high, comm::ReduceOp::max);
    world().group().all_reduce(low, comm::ReduceOp::min);
    EXPECT_FALSE(at::equal(high, low)) << plugin;
  }
}

}  // namespace
}  // namespace trireme::tests::buffers
