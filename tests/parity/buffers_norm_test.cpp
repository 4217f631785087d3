// Synchronised nn::BatchNorm: every layout has the statistics of one process on the whole global batch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/norm.h>

#include "core/nn/block.h"
#include "core/nn/layers/batch_norm.h"
#include "core/nn/layers/linear.h"
#include "core/nn/sums_over_ranks.h"
#include "tests/parity/buffers.h"

namespace trireme::tests::buffers {
namespace {

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
    add_block(register_module("2", std::make_shared<Normed>(12, kClassCount, false)));
    finish();
  }
};

constexpr std::int64_t kSamples = 17;

/// The reference: the same network of LibTorch's layers, trained on the whole batch.
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
    (nn::cross_entropy(x, micro.targets["labels"]) / static_cast<double>(micro.size())).backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, value] : t) {
      if (!value.requires_grad()) continue;
      value.sub_(value.grad() * kLr);
      value.mutable_grad() = at::Tensor();
    }
  }
  return t;
}

/// Runs on every number of ranks under every plugin. On 4 ranks, 5 samples are split into 2, 1, 1 and 1, and the last
/// batch of 2 leaves two ranks without samples.
class SynchronisedNorms : public UnderPlugins {};

TEST_P(SynchronisedNorms, EqualOneProcess) {
  for (const std::int64_t global : {9, 5}) {
    if (GetParam().name == "pipeline_interleaved_recompute") GTEST_SKIP() << "three blocks are too few for this layout";
    auto plug = GetParam();
    if (const auto layers = plug.keys.find("[5, 3]"); layers != std::string::npos)
      plug.keys.replace(layers, 6, "[2, 1]");
    if (const auto micro = plug.keys.find("size = 2\nmicrobatch_size = 2"); micro != std::string::npos)
      plug.keys.replace(micro, 28, "size = 2");
    auto options = options_of(plug);
    options.train.global_batch = global;
    options.train.micro_batch = global;
    Training training(plug, std::make_shared<NormedNet>(), "", options, std::make_shared<Points>(kSamples));
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

/// A layer of one's own that counts the samples of all ranks.
class Counting : public nn::Block, public nn::SumsOverRanks {
 public:
  nn::Tensors forward(nn::Tensors inputs, const nn::Context&) override {
    seen = at::full({1}, inputs.front().size(0), at::kDouble);
    if (sum_over_ranks) sum_over_ranks(seen);
    return inputs;
  }
  at::Tensor seen;
};

class CountingNet : public NormedNet {
 public:
  CountingNet() : counting(register_module("counting", std::make_shared<Counting>())) { add_block(counting); }
  std::shared_ptr<Counting> counting;
};

TEST(LayersThatSumOverRanks, AreConnectedWithoutBeingKnown) {
  const auto net = std::make_shared<CountingNet>();
  const Plug plug{"torch_ddp", "torch_ddp", ""};
  auto options = options_of(plug);
  options.train.micro_batch = kGlobal;
  Training training(plug, net, "", options);
  training.train_to(1);
  EXPECT_EQ(net->counting->seen.item<double>(), kGlobal);
}

/// In 16-bit precisions the sums and the running statistics are float32, so both stay near those of float64.
TEST(BuffersInHalfPrecision, StayNearFloat64) {
  for (const auto* plugin : {"torch_ddp", "low_level_zero", "gemini", "hybrid_parallel"})
    for (const auto* precision : {"bf16", "fp16"}) {
      SCOPED_TRACE(fmt::format("{} {}", plugin, precision));
      const Plug plug{plugin, plugin, ""};
      const auto trained = [&](const char* in) {
        auto options = options_of(plug);
        options.train.precision = in;
        if (in == std::string("fp16")) options.train.loss_scale.initial_scale = 64;  // no step is skipped
        options.optimizer.lr = 0.01;
        options.train.micro_batch = kGlobal;
        Training training(plug, std::make_shared<NormedNet>(), "", options);
        training.train_to(kSteps);
        for (const auto& [placement, value] : nn::buffers(training.run.model->module()))
          if (value.is_floating_point()) {
            EXPECT_GE(value.element_size(), 4U) << placement.name;
          }
        return training.state();
      };
      const auto got = trained(precision), wanted = trained("fp64");
      for (const auto* name : {"0.norm.running_mean", "0.norm.running_var", "1.norm.running_mean"}) {
        const auto of = wanted.at(name), have = got.at(name).to(at::kDouble);
        EXPECT_LT(((have - of).norm() / of.norm()).item<double>(), 0.05) << name;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Plugins, SynchronisedNorms, testing::ValuesIn(all_plugs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trireme::tests::buffers
