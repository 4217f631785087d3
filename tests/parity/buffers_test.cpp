// Buffers are state: running statistics are equal on all ranks after each step, under every plugin; they are saved,
// resumed bit for bit, exported and loaded; recomputation and pipelines update them once a microbatch. The network is a
// user's own, with LibTorch's batch normalisation and dropout, whose draws must survive all of that too.
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "core/base/random.h"
#include "core/booster/run_state.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/weights.h"
#include "core/comm/text.h"
#include "core/nn/adapt.h"
#include "core/nn/batch_norm.h"
#include "core/nn/linear.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kFeatures = 6, kClassesHere = 3, kGlobal = 8, kMicro = 2, kSteps = 4;
constexpr double kLr = 0.2;

class Points : public data::Dataset {
 public:
  explicit Points(std::int64_t size = 2 * kGlobal) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto whole = shard::Placement::whole("x", {kFeatures});
    data::Sample sample;
    sample.inputs = {
        shard::draw(shard::Init::normal(0.5, 2), 50 + static_cast<std::uint64_t>(index), whole, at::kDouble, at::kCPU)};
    sample.label = index * 5 % kClassesHere;
    return sample;
  }

 private:
  std::int64_t size_;
};

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Linear(kFeatures, 12), BatchNorm1d(12), Dropout(0.3), ReLU(), Linear(12, 12), BatchNorm1d(12),
                    ReLU(), Linear(12, kClassesHere));
}

struct Plug {
  std::string name, plugin, keys;
  int pipeline = 1;  ///< ranks of its pipeline
  bool recompute = false;
};
void PrintTo(const Plug& plug, std::ostream* out) { *out << plug.name; }

Case case_of(const Plug& plug) {
  Case c;
  c.plugin_name = plug.plugin;
  c.plugin = plug.keys;
  return c;
}

BoostOptions options_of(const Plug& plug) {
  BoostOptions options;
  options.train.global_batch = kGlobal;
  // A pipeline's own key for it must have the same effect.
  if (plug.keys.find("microbatch_size") == std::string::npos) options.train.micro_batch = kMicro;
  options.train.precision = "fp64";
  options.train.recompute = plug.recompute;
  options.train.epochs = kSteps;
  options.optimizer.name = "sgd";
  options.optimizer.lr = kLr;
  options.seed = kSeed;
  return options;
}

/// A training under a plugin.
struct Training {
  explicit Training(const Plug& plug, const std::string& weights = "")
      : Training(plug, weights, nn::adapt(make_net()), options_of(plug)) {}
  Training(const Plug& plug, const std::string& weights, std::shared_ptr<nn::Model> model, const BoostOptions& options,
           std::int64_t samples = 2 * kGlobal)
      : booster(world(), make_plugin(case_of(plug)), options) {
    BoostInputs inputs;
    inputs.source.model = std::move(model);
    inputs.source.weights = weights;
    inputs.criterion = [](const nn::Tensors& outputs, const data::Batch& batch) {
      return nn::cross_entropy(outputs.front(), batch.labels);
    };
    inputs.data = std::make_shared<Points>(samples);
    run = booster.boost(std::move(inputs));
  }
  void train_to(std::int64_t step) {
    const auto steps = run.loader->steps_per_epoch();
    while (run.step < step) {
      run.loader->start_epoch(run.step / steps, run.step % steps);
      for (auto batch = run.loader->next(); batch && run.step < step; batch = run.loader->next())
        booster.train_step(run, *batch);
    }
  }
  Named state() { return gathered(run.model->state_dict(), booster.mesh()); }
  Booster booster;
  Boosted run;
};

/// The tensors of a plain module by name.
Named tensors_of(const torch::nn::Sequential& net) {
  Named out;
  for (const auto& item : net->named_parameters()) out[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) out[item.key()] = item.value();
  return out;
}

/// The same training in one process, without the engine: every share of the batch in turn, of which only the first
/// one's running statistics stay.
Named expected(const Named& start, int shares) {
  auto net = make_net();
  net->to(at::kDouble);
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
        auto x = micro.inputs.front();
        std::uint64_t block = 0;
        for (auto& child : *net) {
          auto key = random::mix(kSeed, static_cast<std::uint64_t>(step));
          key = random::mix(key, static_cast<std::uint64_t>(micro.sample_ids[0].item<std::int64_t>()));
          at::manual_seed(random::mix(key, block++));
          x = child.any_forward(x).get<at::Tensor>();
        }
        (nn::cross_entropy(x, micro.labels).sum / kGlobal).backward();
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

class Buffers : public testing::TestWithParam<Plug> {
 protected:
  void SetUp() override {
    if (world().size() % GetParam().pipeline != 0) GTEST_SKIP() << "needs more ranks";
  }
};

TEST_P(Buffers, AreThoseOfTheFirstShare) {
  Training training(GetParam());
  const auto start = training.state();
  EXPECT_EQ(start.size(), 6U + 4U + 6U);  // weights and biases, those of two norms, and their buffers
  training.train_to(kSteps);
  const auto got = training.state();
  for (const auto& [name, want] : expected(start, world().size() / GetParam().pipeline)) {
    const auto of = want.detach().to(at::kDouble), have = got.at(name).to(at::kDouble);
    EXPECT_LE((have - of).abs().max().item<double>(), 1e-9) << name;
  }
  EXPECT_GT(got.at("1.num_batches_tracked").item<std::int64_t>(), 0);
  // Equal on every rank that runs the block, not only on the one whose copy is saved.
  for (const auto& [placement, value] : nn::buffers(training.run.model->module()))
    EXPECT_TRUE(at::equal(value.cpu(), got.at(placement.name))) << placement.name << " on rank " << world().rank();
}

TEST_P(Buffers, AreResumedBitForBit) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("buffers-" + GetParam().name);
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  world().group().barrier();
  Training straight(GetParam());
  straight.train_to(kSteps / 2);
  straight.booster.save(straight.run, folder.string());
  world().group().barrier();
  straight.train_to(kSteps);
  Training resumed(GetParam());
  ASSERT_TRUE(resumed.booster.load(resumed.run, folder.string()));
  EXPECT_EQ(resumed.run.step, kSteps / 2);
  resumed.train_to(kSteps);
  expect_bitwise(resumed.state(), straight.state());

  // A checkpoint without buffers, as the version before wrote them: they keep their values.
  Training older(GetParam());
  older.train_to(1);
  auto contents = contents_of(older.run);
  contents.weights = older.run.model->weights();
  contents.record.progress.global_step = 1;
  const auto stored =
      checkpoint::save_checkpoint((folder / "older").string(), contents, /*keep=*/1, older.booster.mesh());
  const auto path = comm::broadcast_text(world().group(), world().device(), stored);
  world().group().barrier();
  Training from_older(GetParam());
  restore(from_older.run, checkpoint::Checkpoint(path), Log());
  const auto state = from_older.state(), wanted = older.state();
  EXPECT_TRUE(at::equal(state.at("4.weight"), wanted.at("4.weight")));
  EXPECT_EQ(state.at("1.num_batches_tracked").item<std::int64_t>(), 0);
  world().group().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST_P(Buffers, AreExportedAndLoaded) {
  const auto folder = (std::filesystem::path(testing::TempDir()) / ("export-" + GetParam().name)).string();
  Training training(GetParam());
  training.train_to(2);
  checkpoint::save_weights(folder, training.run.model->state_dict(), {}, training.booster.mesh());
  world().group().barrier();
  Training other(GetParam(), folder);
  expect_bitwise(other.state(), training.state());
  world().group().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(
    Plugins, Buffers,
    testing::Values(
        Plug{"torch_ddp", "torch_ddp", ""}, Plug{"torch_ddp_recompute", "torch_ddp", "", 1, true},
        Plug{"low_level_zero", "low_level_zero", "stage = 1"},
        Plug{"low_level_zero_2", "low_level_zero", "stage = 2", 1, true},
        Plug{"gemini", "gemini", "chunk_config = 100"},
        Plug{"gemini_recompute", "gemini", "chunk_config = 100", 1, true},
        Plug{"hybrid", "hybrid_parallel", "zero_stage = 0"}, Plug{"hybrid_zero3", "hybrid_parallel", "zero_stage = 3"},
        Plug{"pipeline", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2", 2},
        Plug{"pipeline_zero1_recompute", "hybrid_parallel",
             "pp_size = 2\nmicrobatch_size = 2\nzero_stage = 1\nnum_layers_per_stage = [5, 3]", 2, true},
        Plug{"pipeline_zb_h1", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2\npp_style = \"zb_h1\"", 2},
        Plug{"pipeline_interleaved_recompute", "hybrid_parallel",
             "pp_size = 2\nmicrobatch_size = 2\npp_style = \"interleaved\"\nnum_model_chunks = 2", 2, true}),
    [](const auto& test) { return test.param.name; });

/// A network whose statistics are those of the whole global batch, in training as well.
class Normed : public nn::Block {
 public:
  Normed(std::int64_t in, std::int64_t out, bool images)
      : linear_(register_module("linear", std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out}))),
        norm_(register_module("norm", std::make_shared<nn::BatchNorm>(nn::BatchNorm::Options{
                                          .channels = images ? out / 3 : out, .synchronised = true}))),
        images_(images) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto x = linear_->forward(inputs.front(), context);
    return {norm_->forward(images_ ? x.unflatten(1, {-1, 3}) : x, context).flatten(1).tanh()};
  }

 private:
  std::shared_ptr<nn::Linear> linear_;
  std::shared_ptr<nn::BatchNorm> norm_;
  bool images_;
};

class NormedNet : public nn::Model {
 public:
  NormedNet() {
    add_block(register_module("0", std::make_shared<Normed>(kFeatures, 12, false)));
    add_block(register_module("1", std::make_shared<Normed>(12, 12, true)));
    add_block(register_module("2", std::make_shared<Normed>(12, kClassesHere, false)));
    finish();
  }
};

constexpr std::int64_t kSamples = 17;

/// The same by LibTorch's layers on the whole batch.
Named whole_batch(const Named& start, std::int64_t global) {
  Named t;
  for (const auto& [name, value] : start) {
    t[name] = value.clone();
    if (name.ends_with("weight") || name.ends_with("bias")) t[name].requires_grad_();
  }
  data::LoaderOptions options{.global_batch = global, .micro_batch = global};
  options.seed = kSeed;
  options.shuffle = true;
  options.dtype = at::kDouble;
  data::Loader loader(std::make_shared<Points>(kSamples), options);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
    const auto batch = loader.next();
    const auto& micro = batch->micro.front();
    auto x = micro.inputs.front();
    for (const auto* block : {"0.", "1.", "2."}) {
      const auto of = [&](const char* name) { return t.at(std::string(block) + name); };
      x = at::linear(x, of("linear.weight"), of("linear.bias"));
      if (block[0] == '1') x = x.unflatten(1, {-1, 3});
      x = at::batch_norm(x, of("norm.weight"), of("norm.bias"), of("norm.running_mean"), of("norm.running_var"), true,
                         0.1, 1e-5, false);
      x = x.flatten(1).tanh();
    }
    (nn::cross_entropy(x, micro.labels).sum / static_cast<double>(micro.size())).backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, value] : t) {
      if (!value.requires_grad()) continue;
      value.sub_(value.grad() * kLr);
      value.mutable_grad() = at::Tensor();
    }
  }
  return t;
}

/// On every number of ranks and under every plugin. On 4 ranks, 5 samples are shares of 2, 1, 1 and 1, and the last
/// batch of 2 leaves two ranks without any.
TEST_P(Buffers, SynchronisedNormsAreThoseOfOneProcess) {
  for (const std::int64_t global : {9, 5}) {
    if (GetParam().name == "pipeline_interleaved_recompute") continue;  // three blocks are too few for it
    auto plug = GetParam();
    if (const auto layers = plug.keys.find("[5, 3]"); layers != std::string::npos)
      plug.keys.replace(layers, 6, "[2, 1]");
    if (const auto micro = plug.keys.find("size = 2\nmicrobatch_size = 2"); micro != std::string::npos)
      plug.keys.replace(micro, 28, "size = 2");
    auto options = options_of(plug);
    options.train.global_batch = global;
    options.train.micro_batch = global;
    Training training(plug, "", std::make_shared<NormedNet>(), options, kSamples);
    const auto start = training.state();
    training.train_to(kSteps);
    const auto got = training.state();
    for (const auto& [name, want] : whole_batch(start, global)) {
      if (name.ends_with("num_batches_tracked")) {
        EXPECT_EQ(got.at(name).item<std::int64_t>(), kSteps);
        continue;
      }
      EXPECT_LE((got.at(name) - want.detach()).abs().max().item<double>(), 1e-9) << name << " of " << global;
    }
  }
}

/// broadcast_buffers = false: each rank keeps its own statistics.
TEST(BuffersApart, StayApart) {
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  for (const auto* plugin : {"torch_ddp", "low_level_zero", "gemini", "hybrid_parallel"}) {
    Training training({plugin, plugin, "broadcast_buffers = false"});
    training.train_to(1);
    auto buffers = nn::buffers(training.run.model->module());
    auto high = buffers.front().value.clone(), low = high.clone();
    world().group().all_reduce(high, comm::ReduceOp::max);
    world().group().all_reduce(low, comm::ReduceOp::min);
    EXPECT_FALSE(at::equal(high, low)) << plugin;
  }
}

}  // namespace
}  // namespace trireme::tests
