// A module, an optimizer and a data set of LibTorch, boosted as they are: every layout trains as they do by themselves.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/accelerate/accelerate_inputs.h"
#include "core/data/torch_dataset.h"
#include "tasks/tasks.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kPoints = 11, kPointsAStep = 4, kPointEpochs = 2, kOutputs = 3;

class Points : public torch::data::datasets::Dataset<Points> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<double>(index);
    const auto at = [i](double k) { return at::scalar_tensor(std::sin(i * k), at::kDouble); };
    return {at::stack({at(1), at(2), at(3), at(5)}),
            at::scalar_tensor(static_cast<std::int64_t>(index) % kOutputs, at::kLong)};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return kPoints; }
};

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(4, 7), torch::nn::Tanh(), torch::nn::Linear(7, 5), torch::nn::Tanh(),
                            torch::nn::Linear(5, kOutputs));
  net->to(at::kDouble);
  return net;
}

/// The weights decay, the biases learn twice as fast.
torch::optim::AdamW make_optimizer(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> weights, biases;
  for (const auto& parameter : net->parameters()) (parameter.dim() == 2 ? weights : biases).push_back(parameter);
  using Options = torch::optim::AdamWOptions;
  return torch::optim::AdamW(
      std::vector<torch::optim::OptimizerParamGroup>{
          {weights, std::make_unique<Options>(Options(0.05).weight_decay(0.1))},
          {biases, std::make_unique<Options>(Options(0.1).weight_decay(0))}},
      Options(0.05));
}

/// By LibTorch alone, each global batch at once and in the order of the data.
Named by_libtorch() {
  auto net = make_net();
  auto optimizer = make_optimizer(net);
  Points points;
  for (std::int64_t epoch = 0; epoch < kPointEpochs; ++epoch)
    for (std::int64_t begin = 0; begin < kPoints; begin += kPointsAStep) {
      std::vector<at::Tensor> inputs, labels;
      for (auto i = begin; i < std::min(begin + kPointsAStep, kPoints); ++i) {
        const auto example = points.get(static_cast<std::size_t>(i));
        inputs.push_back(example.data);
        labels.push_back(example.target);
      }
      at::cross_entropy_loss(net->forward(at::stack(inputs)), at::stack(labels)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  Named weights;
  for (const auto& parameter : net->named_parameters()) weights[parameter.key()] = parameter.value().detach();
  return weights;
}

TEST(ParityBoosterTorch, AModuleAnOptimizerAndADataSetOfLibTorch) {
  const auto wanted = by_libtorch();
  for (const auto& [plugin, keys, ranks] : {std::tuple{"torch_ddp", "", 1},
                                            {"low_level_zero", "stage = 2", 1},
                                            {"gemini", "", 1},
                                            {"hybrid_parallel", "zero_stage = 1", 1},
                                            {"hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1", 2}}) {
    if (world().size() % ranks != 0) continue;
    SCOPED_TRACE(std::string(plugin) + " " + keys);
    Case c;
    c.plugin_name = plugin;
    c.plugin = keys;
    Booster booster(
        world(), make_plugin(c),
        {.train = {.epochs = kPointEpochs, .global_batch = kPointsAStep, .precision = "fp64", .shuffle = false},
         .seed = kSeed});
    const auto net = make_net();
    auto optimizer = make_optimizer(net);
    auto run = booster.boost({.source = model_source(net),
                              .task = tasks::classification(),
                              .data = data::from_torch(Points(), kOutputs),
                              .optimizer = &optimizer});
    for (const auto epoch : run.epochs())
      for (const auto& batch : epoch) run.train_step(batch);
    const auto [worst, name] = distance(gathered(run.model->weights(), booster.mesh()), wanted, kBound);
    EXPECT_LE(worst, 1) << name;
  }
}

TEST(ParityBoosterTorch, OptionsThatAnOptimizerWouldReplaceAreRefused) {
  Case c;
  c.plugin_name = "torch_ddp";
  Booster booster(world(), make_plugin(c), {.train = {.global_batch = kPointsAStep}, .optimizer = {.lr = 0.5}});
  const auto net = make_net();
  auto optimizer = make_optimizer(net);
  EXPECT_THROW(booster.boost({.source = model_source(net),
                              .task = tasks::classification(),
                              .data = data::from_torch(Points(), kOutputs),
                              .optimizer = &optimizer}),
               ConfigError);
}

}  // namespace
}  // namespace trireme::tests
