#include "core/plan/step_rates.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/trace.h"
#include "core/comm/host_values.h"
#include "core/nn/layers/dropout_mask.h"
#include "core/nn/layers/fused_attention.h"
#include "core/plan/measured.h"
#include "core/plan/operator_watch.h"
#include "core/plan/rate_fit.h"

namespace trireme::plan {
namespace {

constexpr std::size_t kBlocks = 6;  ///< of a network, whose tensors together are no longer in the caches

/// A small network whose steps run all kinds of operators as they run in a training: on tensors that others have just
/// written, with the memory that others have just freed.
class Network {
 public:
  explicit Network(at::ScalarType dtype) : options_(dtype) {}
  virtual ~Network() = default;
  virtual at::Tensor loss() = 0;

  void step() {
    loss().backward();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (auto& weight : weights_) {
      auto& gradient = gradients.emplace_back(std::exchange(weight.mutable_grad(), at::Tensor()));
      // A training adds microbatches and computes norms.
      gradient.add_(gradient);
      at::linalg_vector_norm(gradient);
    }
    if (first_.empty())
      for (const auto& weight : weights_) {
        first_.push_back(at::zeros_like(weight));
        second_.push_back(at::zeros_like(weight));
        steps_.push_back(at::ones({}));
      }
    at::_fused_adamw_(weights_, gradients, first_, second_, {}, steps_, 1e-6, 0.9, 0.999, 0.01, 1e-8, false, false);
  }

 protected:
  at::Tensor weight(std::vector<std::int64_t> shape) {
    return weights_.emplace_back(at::full(shape, 0.01, options_).requires_grad_());
  }
  at::TensorOptions options_;

 private:
  std::vector<at::Tensor> weights_, first_, second_, steps_;
};

class Transformer final : public Network {
 public:
  Transformer(std::int64_t batch, std::int64_t tokens, std::int64_t width, at::ScalarType dtype = at::kFloat)
      : Network(dtype),
        input_(at::ones({batch, tokens, width}, options_)),
        labels_(at::zeros({batch * tokens}, at::kLong)),
        samples_(at::arange(batch, at::kLong)) {
    for (auto& block : blocks_)
      block = {weight({width}),
               weight({width}),
               weight({3 * width, width}),
               weight({3 * width}),
               weight({width, width}),
               weight({width}),
               weight({width}),
               weight({width}),
               weight({4 * width, width}),
               weight({4 * width}),
               weight({width, 4 * width}),
               weight({width})};
    head_ = weight({kClasses, width});
  }

  at::Tensor loss() override {
    auto x = input_;
    const auto batch = x.size(0), tokens = x.size(1), width = x.size(2);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const auto& w = blocks_[i];
      const auto qkv = at::linear(at::layer_norm(x, {width}, w[0], w[1]), w[2], w[3])
                           .view({batch, tokens, 3, kHeads, width / kHeads})
                           .permute({2, 0, 3, 1, 4});
      const auto q = qkv[0], k = qkv[1], v = qkv[2];
      // Every other block's attention is not fused, as with dropout.
      const auto attended = i % 2 == 0 ? nn::fused_attention(q, k, v)
                                       : at::matmul(at::softmax(at::matmul(q, k.transpose(-2, -1)) * 0.125, -1), v);
      const auto mask = nn::dropout_mask(7, 0.1, samples_, {.count = tokens * width}, c10::kCPU);
      const auto kept = mask.view(x.sizes());
      x = x + at::linear(attended.transpose(1, 2).reshape({batch, tokens, width}), w[4], w[5]) * kept;
      at::native_dropout_backward(x.detach(), kept, 1.1);  // which the product's backward pass is not
      const auto hidden = at::linear(at::layer_norm(x, {width}, w[6], w[7]), w[8], w[9]);
      const auto active = i % 3 == 0 ? at::gelu(hidden) : i % 3 == 1 ? at::gelu(hidden, "tanh") : at::silu(hidden);
      x = x + at::linear(active, w[10], w[11]);
    }
    return at::cross_entropy_loss(at::linear(x, head_).view({batch * tokens, kClasses}), labels_);
  }

 private:
  static constexpr std::int64_t kHeads = 4, kClasses = 256;
  at::Tensor input_, labels_, samples_, head_;
  std::array<std::array<at::Tensor, 12>, kBlocks> blocks_;
};

/// As a ResNet has them: ever more channels of ever smaller images.
class Convolutions final : public Network {
 public:
  Convolutions(std::int64_t batch, std::int64_t size, std::int64_t channels, at::ScalarType dtype = at::kFloat)
      : Network(dtype), input_(at::ones({batch, 3, size, size}, options_)) {
    const auto add = [&](std::int64_t in, std::int64_t out, std::int64_t kernel) {
      layers_.push_back({weight({out, in, kernel, kernel}), weight({out}), weight({out}), at::zeros({out}, options_),
                         at::ones({out}, options_)});
    };
    add(3, channels, 7);
    for (std::int64_t in = channels, stage = 0; stage < kStages; ++stage) {
      const auto out = channels << stage;
      for (const auto& [from, kernel] : {std::pair{in, 3}, {out, 3}, {in, 1}, {out, 1}}) add(from, out, kernel);
      in = out;
    }
  }

  at::Tensor loss() override {
    std::size_t next = 0;
    const auto layer = [&](const at::Tensor& x, std::int64_t stride) {
      const auto& l = layers_[next++];
      const auto made = at::conv2d(x, l[0], {}, stride, l[0].size(2) / 2);
      return at::batch_norm(made, l[1], l[2], l[3], l[4], true, 0.1, 1e-5, true);
    };
    auto x = at::relu(layer(input_, 2));
    for (std::int64_t stage = 0; stage < kStages; ++stage) {
      const std::int64_t stride = stage == 0 ? 1 : 2;
      const auto inner = layer(at::relu(layer(x, stride)), 1);
      x = at::relu(inner + layer(x, stride));
      x = at::relu(x + layer(x, 1));
    }
    return x.sum();
  }

 private:
  static constexpr std::int64_t kStages = 4;
  at::Tensor input_;
  std::vector<std::array<at::Tensor, 5>> layers_;
};

}  // namespace

double speed_alone(comm::World& world) {
  constexpr int kSteps = 20;
  Transformer network(16, 50, 128);
  const auto median_step = [&] {
    std::vector<double> seconds;
    for (int i = 0; i < kSteps; ++i) {
      const double begun = trace::now();
      network.step();
      seconds.push_back(trace::now() - begun);
    }
    return median(std::move(seconds));
  };
  double alone = 0;
  if (world.rank() == 0) alone = median_step();
  world.group().barrier();
  const double together = median_step();
  world.group().barrier();
  return world.rank() == 0 ? std::max(1.0, together / alone) : 1;
}

StepRates rates_in_steps(comm::World& world, double seconds) {
  std::vector<std::unique_ptr<Network>> networks;
  for (const std::int64_t width : {32, 96, 192, 512})
    for (const std::int64_t batch : {2, 16}) networks.push_back(std::make_unique<Transformer>(batch, 50, width));
  // Attention over few tokens is in fp32 where the rest is in bf16.
  for (const auto& [dtype, batch, tokens] : {std::tuple{at::kDouble, 8, 50}, {at::kBFloat16, 3, 128}})
    for (const std::int64_t width : {96, 192}) {
      networks.push_back(std::make_unique<Transformer>(batch, tokens, width, dtype));
      networks.push_back(std::make_unique<Convolutions>(8, 32, width / 6, dtype));
    }
  for (const auto& [channels, size] : {std::pair<std::int64_t, std::int64_t>{16, 32}, {16, 64}, {32, 64}, {64, 64}})
    for (const std::int64_t batch : {2, 8}) networks.push_back(std::make_unique<Convolutions>(batch, size, channels));
  RateFit found;
  OverheadFit overheads;
  std::vector<double> jitters;
  for (auto& network : networks) {
    network->step();
    const double first = trace::now();
    network->step();
    const double step = comm::reduce_value(world.group(), trace::now() - first, comm::ReduceOp::max);
    const auto steps =
        static_cast<int>(std::clamp(seconds / static_cast<double>(2 * networks.size()) / step, 2.0, 1000.0));
    double computing = 0, waiting = 0;
    for (int i = 0; i < steps; ++i) {
      const double begun = trace::now();
      network->step();
      const double computed = trace::now();
      world.group().barrier();
      computing += computed - begun;
      waiting += trace::now() - computed;
    }
    const double seconds_before = found.seconds(), operators_before = found.operators();
    {
      // The watch costs as much as a small operator, so that it has steps of its own.
      const OperatorWatch watch(c10::kCPU, [&](const SeenOperator& seen) { found.add(seen); });
      for (int i = 0; i < steps; ++i) network->step();
    }
    const double operators = found.operators() - operators_before;
    overheads.add((found.seconds() - seconds_before) / operators, computing / operators);
    const double mean_wait = comm::reduce_value(world.group(), waiting, comm::ReduceOp::sum) / world.size() / steps;
    jitters.push_back(mean_wait * mean_wait / (computing / steps));
  }
  const auto [launch, factor] = overheads.line();
  StepRates measured{.jitter_us = rounded(std::max(1e-3, 1e6 * median(std::move(jitters))))};
  auto& out = measured.compute;
  out.launch_us = rounded(1e6 * launch);
  out.product = RateFit::kProducts.sizes();
  out.mb = RateFit::kBytes.sizes(1e6);
  out.mflop = RateFit::kFlops.sizes(1e6);
  const auto set = [factor = factor](const std::vector<double>& rates, double unit, ComputeRates::Rates& list) {
    for (const auto rate : rates) list.push_back(rounded(rate / factor / unit));
  };
  for (const auto& [dtype, list] :
       {std::pair{at::kFloat, &out.tflops_fp32}, {at::kDouble, &out.tflops_fp64}, {at::kBFloat16, &out.tflops_bf16}})
    set(found.rates(Kind::product, dtype), 1e12, *list);
  set(found.rates(Kind::convolution), 1e12, out.convolution_tflops);
  set(found.rates(Kind::convolution_backward), 1e12, out.convolution_backward_tflops);
  for (auto* list : {&out.attention, &out.attention_backward, &out.convolution, &out.tensors}) list->clear();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kBFloat16}) {  // fp16 as bf16
    out.attention.push_back(rounded(found.part_of_products(Kind::attention, dtype)));
    out.attention_backward.push_back(rounded(found.part_of_products(Kind::attention_backward, dtype)));
    out.convolution.push_back(rounded(found.part_of_float(dtype, /*convolutions=*/true)));
    out.tensors.push_back(rounded(found.part_of_float(dtype, /*convolutions=*/false)));
  }
  for (const auto& row : byte_rates()) set(found.rates(row.kind), 1e9, out.*row.list);
  return measured;
}

}  // namespace trireme::plan
