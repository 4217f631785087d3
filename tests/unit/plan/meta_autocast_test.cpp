// Autocast on a planned CPU: training steps hold the memory that they hold on the CPU, and have the same dtypes.
#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/memory.h"
#include "core/base/planned_device.h"
#include "core/booster/precision.h"
#include "core/nn/autograd/recompute.h"
#include "core/plan/meta_kernels.h"

namespace trireme::plan {
namespace {

/// Makes tensors on one device, and reads its memory.
struct Maker {
  at::Device device;
  [[nodiscard]] at::Tensor parameter(at::IntArrayRef shape) const {
    return at::empty(shape, at::TensorOptions(device)).fill_(0.01).set_requires_grad(true);
  }
  [[nodiscard]] at::Tensor values(at::IntArrayRef shape) const { return at::ones(shape, at::TensorOptions(device)); }
  [[nodiscard]] at::Tensor labels(at::IntArrayRef shape) const {
    return at::zeros(shape, at::TensorOptions(device).dtype(at::kLong));
  }
  [[nodiscard]] std::int64_t held() const {
    return device.is_meta() ? PlannedDevice::current()->held() : memory::held();
  }
};

/// A forward pass: from the parameters to the loss.
using Forward = std::function<at::Tensor(const Maker&, const std::vector<at::Tensor>&)>;

struct AutocastModel {
  std::string name;
  std::vector<std::vector<std::int64_t>> parameters;
  Forward forward;
};

struct AutocastStep {
  std::int64_t after_forward = 0, forward_peak = 0, peak = 0;  ///< bytes above the parameters
  std::vector<at::ScalarType> dtypes{};                        ///< of the loss and the gradients
};

AutocastStep train(const AutocastModel& model, c10::Device device, const std::string& precision) {
  const Maker maker{device};
  std::vector<at::Tensor> parameters;
  for (const auto& shape : model.parameters) parameters.push_back(maker.parameter(shape));
  memory::Meter meter(device);
  const auto before = maker.held();
  meter.reset();
  AutocastStep step;
  at::Tensor loss;
  {
    const AutocastScope scope(Precision::parse(precision), device);
    loss = model.forward(maker, parameters);
  }
  step.after_forward = maker.held() - before;
  step.forward_peak = meter.peak() - before;
  const auto gradients = torch::autograd::grad({loss}, parameters);
  step.peak = meter.peak() - before;
  step.dtypes.push_back(loss.scalar_type());
  for (const auto& gradient : gradients) step.dtypes.push_back(gradient.scalar_type());
  return step;
}

void expect_same_step(const AutocastModel& model) {
  static const bool counting = (memory::count(), true);
  ASSERT_TRUE(counting);
  for (const auto* precision : {"fp32", "bf16"}) {
    train(model, at::kCPU, precision);  // LibTorch's first call may hold more
    const auto real = train(model, at::kCPU, precision);
    PlannedDevice planned(at::kCPU);
    const MetaKernels kernels;
    const auto meta = train(model, at::kMeta, precision);
    EXPECT_EQ(real.dtypes, meta.dtypes) << model.name << ' ' << precision;
    // The buffers of bfloat16 products are planned for CPUs with a matrix unit.
    const double tolerance = at::native::cpublas::could_pack(at::kBFloat16) ? 0.01 : 0.5;
    const auto expect_near = [&](std::int64_t expected, std::int64_t given, const char* what) {
      EXPECT_NEAR(static_cast<double>(given), static_cast<double>(expected), tolerance * static_cast<double>(expected))
          << model.name << ' ' << precision << ", " << what;
    };
    expect_near(real.after_forward, meta.after_forward, "after the forward pass");
    expect_near(real.forward_peak, meta.forward_peak, "peak of the forward pass");
    expect_near(real.peak, meta.peak, "peak");
  }
}

constexpr std::int64_t kBatch = 4, kTokens = 48, kHeads = 4, kFeatures = 64, kVocabulary = 100;

std::vector<std::vector<std::int64_t>> block_parameters() {
  return {
      {kFeatures}, {kFeatures}, {3 * kFeatures, kFeatures}, {3 * kFeatures}, {kFeatures, kFeatures},     {kFeatures},
      {kFeatures}, {kFeatures}, {4 * kFeatures, kFeatures}, {4 * kFeatures}, {kFeatures, 4 * kFeatures}, {kFeatures}};
}

/// A transformer block with normalization before its parts.
at::Tensor transformer_block(const at::Tensor& x, const at::Tensor* p) {
  const auto normal = at::layer_norm(x, {kFeatures}, p[0], p[1]);
  const auto fused = at::linear(normal, p[2], p[3]).view({kBatch, kTokens, 3, kHeads, kFeatures / kHeads});
  const auto parts = fused.permute({2, 0, 3, 1, 4}).unbind(0);
  const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true)
                         .transpose(1, 2)
                         .reshape({kBatch, kTokens, kFeatures});
  const auto y = x + at::linear(mixed, p[4], p[5]);
  const auto hidden = at::gelu(at::linear(at::layer_norm(y, {kFeatures}, p[6], p[7]), p[8], p[9]));
  return y + at::linear(hidden, p[10], p[11]);
}

/// The head's weight, which is the block's table of embeddings too, is cast once for both uses of a step.
at::Tensor token_loss(const Maker& maker, const at::Tensor& x, const at::Tensor& head) {
  const auto logits = at::linear(x, head) + at::linear(at::cat({x, x.relu()}, 1), head).slice(1, 0, kTokens);
  return at::cross_entropy_loss(logits.flatten(0, 1), maker.labels({kBatch * kTokens}));
}

TEST(MetaAutocast, TransformersHoldWhatTheyHoldOnTheCpu) {
  auto shapes = block_parameters();
  shapes.push_back({kVocabulary, kFeatures});
  const auto input = [](const Maker& maker, const std::vector<at::Tensor>& p) {
    return at::embedding(p.back(), maker.labels({kBatch, kTokens}));
  };
  expect_same_step({"transformer", shapes, [&](const Maker& maker, const std::vector<at::Tensor>& p) {
                      return token_loss(maker, transformer_block(input(maker, p), p.data()), p.back());
                    }});
  expect_same_step({"transformer with recompute", shapes, [&](const Maker& maker, const std::vector<at::Tensor>& p) {
                      const std::vector<at::Tensor> of_block(p.begin(), p.end() - 1);
                      const auto run = [of_block](const nn::Tensors& in) {
                        return nn::Tensors{transformer_block(in[0], of_block.data())};
                      };
                      const auto y = nn::run_recomputable({.run = run, .parameters = of_block}, {input(maker, p)});
                      return token_loss(maker, y[0], p.back());
                    }});
}

TEST(MetaAutocast, ConvolutionalNetworksHoldWhatTheyHoldOnTheCpu) {
  expect_same_step(
      {"convolutional network",
       {{16, 3, 3, 3}, {16}, {16}, {32, 16, 3, 3}, {32}, {32}, {10, 32}, {10}},
       [](const Maker& maker, const std::vector<at::Tensor>& p) {
         const auto layer = [&](const at::Tensor& x, std::size_t i) {
           const auto y = at::conv2d(x, p[i], {}, 1, 1);
           const auto channels = maker.values({y.size(1)});
           const auto normal =
               at::batch_norm(y, p[i + 1], p[i + 2], at::zeros_like(channels), channels, true, 0.1, 1e-5, false);
           return at::max_pool2d(at::relu(normal), 2);
         };
         const auto pooled = at::adaptive_avg_pool2d(layer(layer(maker.values({8, 3, 32, 32}), 0), 3), {1, 1});
         return at::cross_entropy_loss(at::linear(pooled.flatten(1), p[6], p[7]), maker.labels({8}));
       }});
}

}  // namespace
}  // namespace trireme::plan
