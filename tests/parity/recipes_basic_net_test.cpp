// Contract C1 for the small convolutional network with its dropout, on grey images: in every layout that it supports,
// with and without accumulation, each parameter is that of one process on the whole global batch.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "core/nn/parameters.h"
#include "models/basic_net/kind.h"
#include "tests/parity/buffers.h"
#include "trireme.h"

namespace trireme::tests::basic_net {
namespace {

using buffers::Plug;

// The last batch of an epoch has 5 samples: on 4 ranks, shares of 2, 1, 1 and 1.
constexpr std::int64_t kImages = 13, kGlobal = 8, kSteps = 4, kHeight = 11, kWidth = 8, kClassCount = 3;
constexpr double kLr = 0.05;

/// Grey images of noise.
class GreyNoise : public data::Dataset {
 public:
  std::int64_t size() const override { return kImages; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto whole = shard::Placement::whole("pixels", {1, kHeight, kWidth});
    const auto pixels =
        shard::draw(shard::Init::normal(0, 1), 70 + static_cast<std::uint64_t>(index), whole, at::kDouble, at::kCPU);
    return data::Sample{{{"pixel_values", pixels}}, data::class_label(index % kClassCount)};
  }
};

std::shared_ptr<nn::Model> net() {
  models::basic_net::Options options;
  const models::basic_net::Kind kind;
  kind.resolve(&options, {.inputs = {{"pixel_values", at::kFloat, {1, kHeight, kWidth}}},
                          .targets = {{nn::kLabels, at::kLong, {}}},
                          .classes = kClassCount});
  return kind.make(&options);
}

/// The same training without the engine, on the whole batch.
Named trained_alone(const Named& start, bool dropout) {
  const auto model = net();
  nn::materialize(*model, 1, at::kDouble, at::kCPU);
  const auto parameters = nn::parameters(*model);
  const at::Tensor undefined;
  for (const auto& p : parameters) p.value.data().copy_(start.at(p.name));
  data::LoaderOptions options{.global_batch = kGlobal, .micro_batch = kGlobal};
  options.seed = kSeed;
  options.shuffle = true;
  options.dtype = at::kDouble;
  data::Loader loader(std::make_shared<GreyNoise>(), options);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
    const auto batch = loader.next();
    const auto& micro = batch->micro.front();
    const nn::Context context{.training = dropout, .seed = kSeed, .step = step, .sample_ids = micro.sample_ids};
    const auto log_odds = model->forward({micro.inputs.front()}, context).front().log_softmax(-1);
    (-log_odds.gather(1, micro.targets[nn::kLabels].unsqueeze(1)).mean()).backward();
    const at::NoGradGuard no_grad;
    for (const auto& p : parameters) {
      p.value.sub_(p.value.grad() * kLr);
      p.value.mutable_grad() = undefined;
    }
  }
  Named trained;
  for (const auto& p : parameters) trained[p.name] = p.value.detach();
  return trained;
}

class BasicNet : public testing::TestWithParam<Plug> {
 protected:
  void SetUp() override {
    if (world().size() % GetParam().pipeline != 0) GTEST_SKIP() << "needs more ranks";
  }
};

TEST_P(BasicNet, IsThatOfOneProcess) {
  for (const std::int64_t micro : {kGlobal, std::int64_t{2}, std::int64_t{1}}) {
    SCOPED_TRACE(fmt::format("microbatches of {}", micro));
    auto options = buffers::options_of(GetParam());
    options.train.global_batch = kGlobal;
    options.train.micro_batch = micro;
    options.optimizer.lr = kLr;
    buffers::Training training(GetParam(), net(), "", options, std::make_shared<GreyNoise>());
    const auto start = training.state();
    training.train_to(kSteps);
    const auto got = training.state(), want = trained_alone(start, true);
    EXPECT_EQ(got.size(), want.size());
    const auto [off, name] = distance(got, want, kBound);
    EXPECT_LE(off, 1) << name;
    EXPECT_GT(distance(trained_alone(start, false), want, 1e-6).first, 1) << "the dropout has no effect";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, BasicNet,
    testing::Values(
        Plug{"torch_ddp", "torch_ddp", ""}, Plug{"torch_ddp_recompute", "torch_ddp", "", 1, true},
        Plug{"zero1", "low_level_zero", "stage = 1"}, Plug{"zero2_recompute", "low_level_zero", "stage = 2", 1, true},
        Plug{"zero3", "hybrid_parallel", "zero_stage = 3"},
        Plug{"zero3_recompute", "hybrid_parallel", "zero_stage = 3", 1, true},
        Plug{"gemini", "gemini", "chunk_config = 20000"},
        Plug{"gemini_recompute", "gemini", "chunk_config = 20000", 1, true},
        Plug{"hybrid", "hybrid_parallel", "zero_stage = 0"}, Plug{"pipeline", "hybrid_parallel", "pp_size = 2", 2},
        Plug{"pipeline_uneven_recompute", "hybrid_parallel", "pp_size = 2\nnum_layers_per_stage = [2, 1]", 2, true},
        Plug{"pipeline_gpipe", "hybrid_parallel", "pp_size = 2\npp_style = \"gpipe\"\nnum_layers_per_stage = [1, 2]",
             2},
        Plug{"pipeline_zb_h1", "hybrid_parallel", "pp_size = 2\npp_style = \"zb_h1\"", 2}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trireme::tests::basic_net
