// Inputs of recomputed blocks in host memory: the same gradients, bit for bit, and less memory on the GPU. Without a
// GPU the test is skipped with a message.
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/memory.h"
#include "core/comm/world.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

constexpr std::int64_t kWide = 512, kRows = 16384, kBlocks = 8;

struct Wide : Block {
  Wide() { linear = register_module("linear", std::make_shared<Linear>(Linear::Options{.in = kWide, .out = kWide})); }
  Tensors forward(Tensors in, const Context& context) override {
    return {in.at(0) + linear->forward(in.at(0), context).tanh()};
  }
  std::shared_ptr<Linear> linear;
};

struct WideModel : Model {
  explicit WideModel(c10::Device device) {
    for (std::int64_t i = 0; i < kBlocks; ++i)
      add_block(register_module("b" + std::to_string(i), std::make_shared<Wide>()));
    finish();
    materialize(*this, 3, at::kFloat, device);
  }
};

struct GpuPass {
  std::vector<at::Tensor> gradients;
  std::int64_t peak = 0;  ///< bytes
};

/// Three steps, so that memory of an earlier one is reused; the gradients add up.
GpuPass train(c10::Device device, const at::Tensor& x, const std::shared_ptr<ActivationOffload>& offload) {
  WideModel model(device);
  memory::Meter meter(device);
  const auto run = [&](const std::shared_ptr<Block>& block, Tensors inputs, const Context& context) {
    auto function = recomputable(block, context);
    function.offload = offload;
    return run_recomputable(std::move(function), std::move(inputs));
  };
  meter.reset();
  for (int step = 0; step < 3; ++step) model.forward({x * (step + 1)}, {}, run).at(0).square().sum().backward();
  GpuPass result{{}, meter.peak()};
  for (auto& p : parameters(model)) result.gradients.push_back(p.value.grad().cpu());
  return result;
}

TEST(OffloadOnGpu, HasTheSameGradientsInLessMemory) {
  if (comm::cuda_device_count() == 0) {
    std::cout << "NO GPU HERE: the copies were compiled and linked, and not run\n";
    return;
  }
  const auto world = comm::World::start(detect_launch(), {.device = "cuda"});
  const auto device = world->device();
  const auto x = at::randn({kRows, kWide}, at::TensorOptions(device));
  const auto stays = train(device, x, nullptr);
  const auto moved = train(device, x, std::make_shared<ActivationOffload>(device));
  ASSERT_EQ(stays.gradients.size(), moved.gradients.size());
  for (std::size_t i = 0; i < stays.gradients.size(); ++i)
    EXPECT_TRUE(at::equal(stays.gradients[i], moved.gradients[i])) << i;
  // At the turn from forward to backward, the inputs of all blocks but the last two are on the host.
  const auto input = static_cast<std::int64_t>(x.nbytes());
  EXPECT_LE(moved.peak, stays.peak - (kBlocks - 4) * input);
}

}  // namespace
}  // namespace trireme::nn
