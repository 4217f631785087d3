// The FLOPs that a run reports: those of the blocks' profile, in proportion to what a step computes; and GPUs' peaks.
#include "core/train/report/flop_rate.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <numeric>

#include "core/base/error.h"
#include "core/config/table.h"
#include "core/nn/adapt.h"
#include "core/nn/block.h"
#include "models/registry.h"
#include "pipeline/block_costs.h"

namespace trireme::train {
namespace {

const auto kAlone = comm::Group::alone("world", 0, nullptr);

/// A small model of a kind, on the meta device.
std::shared_ptr<nn::Model> make(const std::string& name, const nn::DataSpec& data, const std::string& keys) {
  const auto kind = models::all_models().at(name);
  const auto options = kind->default_options();
  const auto root = config::parse_text("[model]\n" + keys, "a.toml");
  config::read_into(root.table("model"), kind->fields(), options.get());
  kind->resolve(options.get(), data);
  return kind->make(options.get());
}

struct FlopCase {
  const char* name;
  nn::DataSpec data;
  const char* keys;
  nn::NamedTensors example;
};

const std::vector<FlopCase>& cases() {
  static const auto ids = at::ones({1, 12}, at::kLong);
  static const std::vector<FlopCase> all{
      {"vit",
       {.inputs = {{"pixel_values", at::kFloat, {3, 16, 16}}}, .classes = 5},
       "hidden_size = 16\nnum_layers = 2\nnum_heads = 2\nintermediate_size = 32\npatch_size = 8\ndropout = 0.1",
       {{"pixel_values", at::zeros({1, 3, 16, 16})}}},
      {"bert",
       {.inputs = {{"input_ids", at::kLong, {-1}}, {"attention_mask", at::kLong, {-1}}}},
       "hidden_size = 16\nnum_layers = 2\nnum_heads = 2\nintermediate_size = 32\nvocab_size = 64",
       {{"input_ids", ids}, {"attention_mask", ids}}},
      {"gpt2",
       {.inputs = {{"input_ids", at::kLong, {-1}}}},
       "hidden_size = 16\nnum_layers = 2\nnum_heads = 2\nvocab_size = 64",
       {{"input_ids", ids}}},
      {"llama",
       {.inputs = {{"input_ids", at::kLong, {-1}}}},
       "hidden_size = 16\nnum_layers = 2\nnum_heads = 4\nnum_key_value_heads = 2\nintermediate_size = 32\nvocab_size = "
       "64",
       {{"input_ids", ids}}}};
  return all;
}

TEST(FlopRate, AForwardPassOnTheMetaDeviceHasTheBlocksFlops) {
  for (const auto& c : cases()) {
    const auto model = make(c.name, c.data, c.keys);
    const auto costs = pipeline::flop_costs(*model, c.example, {}, kAlone);
    EXPECT_EQ(sample_flops(*model, c.example), std::accumulate(costs.begin(), costs.end(), 0.0)) << c.name;
  }
}

/// A step whose microbatches have these numbers of local samples, of 12 tokens by default.
data::StepBatch step_of(const std::vector<std::int64_t>& micro, std::int64_t global, std::int64_t tokens = 12) {
  data::StepBatch step;
  for (const auto samples : micro) {
    step.micro.emplace_back().inputs.set("input_ids", at::ones({samples, tokens}, at::kLong));
    step.local_samples += samples;
  }
  step.global_samples = global;
  return step;
}

TEST(FlopRate, AStepIsThreeForwardPassesOfTheGlobalBatch) {
  const auto& c = cases()[2];
  const double one = sample_flops(*make(c.name, c.data, c.keys), c.example);
  FlopRate rate([&] { return make(c.name, c.data, c.keys); });
  EXPECT_FALSE(rate.of_step(step_of({0}, 3))) << "this rank has not seen a sample yet";
  EXPECT_DOUBLE_EQ(*rate.of_step(step_of({2, 1}, 6)), 3 * 6 * one);
  EXPECT_DOUBLE_EQ(*rate.of_step(step_of({2, 0}, 2, 24)), 3 * 2 * 2 * one) << "padded to twice the length";
  EXPECT_DOUBLE_EQ(*rate.of_step(step_of({0, 0}, 1)), 3 * 2 * one) << "no local sample: as in the step before";
  EXPECT_FALSE(rate.mean());
  rate.add(100, 10);
  EXPECT_DOUBLE_EQ(*rate.mean(), 10);
  rate.add(100, 1);
  rate.add(100, 4);
  EXPECT_DOUBLE_EQ(*rate.mean(), 40) << "without the first step";
}

// The parameters of users' modules have memory, and must keep their values.
TEST(FlopRate, AUsersOwnModulesAreCounted) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)), torch::nn::BatchNorm2d(4),
                            torch::nn::Flatten(), torch::nn::Linear(4 * 6 * 6, 5));
  const auto model = nn::adapt(net);
  std::vector<at::Tensor> before;
  for (const auto& tensor : model->parameters()) before.push_back(tensor.clone());
  EXPECT_EQ(sample_flops(*model, {{"image", at::zeros({7, 3, 8, 8})}}), 2 * (4 * 6 * 6 * 3 * 3 * 3 + 4 * 6 * 6 * 5));
  auto was = before.begin();
  for (const auto& tensor : model->parameters()) EXPECT_TRUE(tensor.equal(*was++));
  // Without MetaKernels, LibTorch has no such kernel.
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto x = at::zeros({2}, meta), condition = at::zeros({2}, meta.dtype(at::kBool));
  EXPECT_ANY_THROW(at::where(condition, x, x));
}

TEST(FlopRate, IsUnknownWhereNothingIsCounted) {
  const auto rate_of = [](const std::function<at::Tensor(const at::Tensor&)>& forward) {
    return FlopRate([forward] {
      return nn::adapt(
          std::make_shared<torch::nn::IdentityImpl>(),
          [forward](const nn::Tensors& in, const nn::Context&) -> nn::Tensors { return {forward(in.front())}; });
    });
  };
  auto plain = rate_of([](const at::Tensor& x) { return x + 1; });
  EXPECT_FALSE(plain.of_step(step_of({2}, 2)));
  EXPECT_EQ(plain.problem(), "it has no matrix product, convolution or attention of LibTorch");
  auto failing = rate_of([](const at::Tensor& x) -> at::Tensor {
    if (x.is_meta()) throw DataError("it wants values");
    return x;
  });
  EXPECT_FALSE(failing.of_step(step_of({2}, 2)));
  EXPECT_EQ(failing.problem(), "it wants values");
  EXPECT_FALSE(failing.mean());
}

TEST(FlopRate, KnownGpusHaveTheirDataSheetsPeak) {
  const struct {
    const char *gpu, *precision;
    double peak;  ///< 0: unknown
  } peaks[] = {{"NVIDIA H100 80GB HBM3", "bf16", 989.4},
               {"NVIDIA H100 PCIe", "bf16", 756},
               {"NVIDIA H200", "tf32", 494.7},
               {"NVIDIA GH200 480GB", "fp16", 989.4},
               {"NVIDIA A100-SXM4-40GB", "fp32", 19.5},
               {"NVIDIA A100-SXM4-40GB", "fp64", 19.5},
               {"NVIDIA A10", "bf16", 125},
               {"Tesla V100-SXM2-16GB", "fp16", 125},
               {"Tesla V100-PCIE-16GB", "fp16", 112},
               {"Tesla V100-SXM2-16GB", "bf16", 0},
               {"NVIDIA L4", "bf16", 121},
               {"NVIDIA L40S", "bf16", 362},
               {"Tesla T4", "fp16", 65},
               {"NVIDIA GeForce RTX 4090", "fp16", 0},
               {"NVIDIA H2", "bf16", 0},
               {"", "fp32", 0}};
  for (const auto& p : peaks) EXPECT_EQ(peak_tflops(p.gpu, p.precision).value_or(0), p.peak) << p.gpu << p.precision;
}

TEST(FlopRate, IsShownInTheUnitThatFits) {
  EXPECT_EQ(rate_text(4.2e7, std::nullopt), "42.0 MFLOP/s");
  EXPECT_EQ(rate_text(1.25e9, std::nullopt), "1.2 GFLOP/s");
  EXPECT_EQ(rate_text(3.21e12, 0.4104), "3.2 TFLOP/s (MFU 41.0 %)");
}

}  // namespace
}  // namespace trireme::train
