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
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/trace.h"
#include "core/comm/host_values.h"
#include "core/nn/layers/dropout_mask.h"
#include "core/plan/measured.h"
#include "core/plan/operator_watch.h"

namespace trireme::plan {
namespace {

constexpr double kLeastProduct = 8;      ///< size of the smallest products that are told apart
constexpr double kLeastBytes = 1 << 12;  ///< of the tensors of the smallest operators
constexpr double kLeastFlops = 1 << 20;  ///< of the smallest convolutions
constexpr std::size_t kProducts = 9, kBytes = 7, kFlops = 6;
constexpr std::size_t kBlocks = 6;  ///< of a network, whose tensors together are no longer in the caches

/// What operators took, by their kinds and sizes. Those with products are told apart by their dtype, too.
class Observations {
 public:
  void add(const SeenOperator& seen) {
    const auto& work = seen.work;
    ++operators;
    if (work.bytes == 0) return;
    seconds += seen.seconds();
    auto& bins = bins_[{work.kind, c10::isFloatingType(work.dtype) ? work.dtype : at::kFloat}];
    auto& bin = work.kind == Kind::convolution ? bins[bin_of(work.flops / kLeastFlops, 2, kFlops)]
                : work.flops > 0               ? bins[bin_of(work.size() / kLeastProduct, 1, kProducts)]
                                               : bins[bin_of(work.bytes / kLeastBytes, 3, kBytes)];
    // What is smaller than the smallest tensor takes as long as that.
    bin.work += work.flops > 0 ? work.flops : std::max(work.bytes, kLeastBytes);
    bin.seconds += seen.seconds();
  }

  /// Work in a second by size; where no operator had a size, that of the next one which had. Empty without any.
  [[nodiscard]] std::vector<double> rates(Kind kind, std::size_t sizes, at::ScalarType dtype = at::kFloat) const {
    const auto found = bins_.find({kind, dtype});
    if (found == bins_.end()) return {};
    const auto& bins = found->second;
    std::vector<double> out(sizes);
    double last = 0;
    for (std::size_t i = 0; i < sizes; ++i) {
      if (bins[i].seconds > 0) last = bins[i].work / bins[i].seconds;
      out[i] = last;
    }
    for (std::size_t i = sizes; i-- > 0;) out[i] = last = out[i] > 0 ? out[i] : last;
    return out;
  }
  /// Work in a second of all operators for which `takes(kind)`, in this dtype, beside what operators of the kind
  /// `like(kind)` and their sizes do in a second of the dtype `beside`; 1 if there were none.
  template <class Takes, class Like>
  [[nodiscard]] double part(at::ScalarType dtype, at::ScalarType beside, const Takes& takes, const Like& like) const {
    double own = 0, as_others = 0;
    for (const auto& [of, bins] : bins_) {
      if (of.second != dtype || !takes(of.first)) continue;
      const auto others = rates(like(of.first), bins.size(), beside);
      for (std::size_t i = 0; i < bins.size() && !others.empty(); ++i) {
        own += bins[i].seconds;
        as_others += bins[i].work / others[i];
      }
    }
    return own > 0 ? as_others / own : 1;
  }
  /// FLOP/s of attention, beside those of products of its size in its dtype.
  [[nodiscard]] double part_of_products(Kind kind, at::ScalarType dtype) const {
    return part(
        dtype, dtype, [kind](Kind of) { return of == kind; }, [](Kind) { return Kind::product; });
  }
  /// Work in a second of convolutions, or of all operators without FLOPs, beside that in fp32.
  [[nodiscard]] double part_of_float(at::ScalarType dtype, bool convolutions) const {
    const auto takes = [=](Kind of) {
      const bool multiplies = of == Kind::product || of == Kind::attention || of == Kind::attention_backward;
      return convolutions ? of == Kind::convolution : !multiplies && of != Kind::convolution;
    };
    return part(dtype, at::kFloat, takes, [](Kind of) { return of; });
  }

  double seconds = 0, operators = 0;

 private:
  struct Bin {
    double work = 0, seconds = 0;
  };
  /// The sizes of a bin are within a factor of 2^octaves.
  static std::size_t bin_of(double size, int octaves, std::size_t count) {
    const double at = std::round(std::log2(std::max(size, 1.0)) / octaves);
    return std::min(static_cast<std::size_t>(at), count - 1);
  }
  std::map<std::pair<Kind, at::ScalarType>, std::array<Bin, std::max(kProducts, kBytes)>> bins_{};
};

/// What a step takes beside its operators: for each of them, and in proportion to their time (memory that is freed, and
/// views).
class Overheads {
 public:
  /// Of a network: mean seconds of an operator, and those of the step for each.
  void add(double inside, double all) { points_.push_back({inside, all}); }

  struct Fit {
    double launch = 0, factor = 1;  ///< all = launch + factor * inside
  };
  /// By least squares of the relative errors.
  [[nodiscard]] Fit fit() const {
    double ones = 0, x = 0, xx = 0, y = 0, xy = 0;  // weighted sums
    for (const auto& [inside, all] : points_) {
      const double weight = 1 / (all * all);
      ones += weight;
      x += weight * inside;
      xx += weight * inside * inside;
      y += weight * all;
      xy += weight * inside * all;
    }
    // On a busy machine the points may say anything.
    const double slope = (ones * xy - x * y) / (ones * xx - x * x);
    const double factor = std::isfinite(slope) ? std::clamp(slope, 1.0, 2.0) : 1;
    return {std::max(1e-7, (y - factor * x) / ones), factor};
  }

 private:
  std::vector<std::pair<double, double>> points_;
};

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
    for (auto& weight : weights_) gradients.push_back(std::exchange(weight.mutable_grad(), at::Tensor()));
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
                           .view({batch, tokens, 3, width / kHead, kHead})
                           .permute({2, 0, 3, 1, 4});
      const auto q = qkv[0], k = qkv[1], v = qkv[2];
      // Every other block's attention is not fused, as with dropout.
      const auto attended = i % 2 == 0 ? at::scaled_dot_product_attention(q, k, v)
                                       : at::matmul(at::softmax(at::matmul(q, k.transpose(-2, -1)) * 0.125, -1), v);
      const auto mask = nn::dropout_mask(7, 0.1, samples_, {.count = tokens * width}, c10::kCPU);
      const auto kept = mask.view(x.sizes());
      x = x + at::linear(attended.transpose(1, 2).reshape({batch, tokens, width}), w[4], w[5]) * kept;
      at::native_dropout_backward(x.detach(), kept, 1.1);  // which the product's backward pass is not
      const auto hidden = at::linear(at::layer_norm(x, {width}, w[6], w[7]), w[8], w[9]);
      x = x + at::linear(i % 2 == 0 ? at::gelu(hidden) : at::silu(hidden), w[10], w[11]);
    }
    return at::cross_entropy_loss(at::linear(x, head_).view({batch * tokens, kClasses}), labels_);
  }

 private:
  static constexpr std::int64_t kHead = 32, kClasses = 256;
  at::Tensor input_, labels_, samples_, head_;
  std::array<std::array<at::Tensor, 12>, kBlocks> blocks_;
};

class Convolutions final : public Network {
 public:
  Convolutions(std::int64_t batch, std::int64_t size, std::int64_t channels, at::ScalarType dtype = at::kFloat)
      : Network(dtype), input_(at::ones({batch, channels, size, size}, options_)) {
    for (auto& layer : layers_)
      layer = {weight({channels, channels, 3, 3}), weight({channels}), weight({channels}),
               at::zeros({channels}, options_), at::ones({channels}, options_)};
  }

  at::Tensor loss() override {
    auto x = input_;
    for (const auto& l : layers_)
      x = x + at::relu(at::batch_norm(at::conv2d(x, l[0], {}, 1, 1), l[1], l[2], l[3], l[4], true, 0.1, 1e-5, true));
    return x.mean();
  }

 private:
  at::Tensor input_;
  std::array<std::array<at::Tensor, 5>, kBlocks> layers_;
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
  for (const auto dtype : {at::kDouble, at::kBFloat16})
    for (const std::int64_t width : {96, 192}) {
      networks.push_back(std::make_unique<Transformer>(8, 50, width, dtype));
      networks.push_back(std::make_unique<Convolutions>(8, 12, width / 3, dtype));
    }
  for (const auto& [channels, size] :
       {std::pair<std::int64_t, std::int64_t>{16, 24}, {32, 12}, {64, 6}, {64, 24}, {128, 12}})
    for (const std::int64_t batch : {4, 16}) networks.push_back(std::make_unique<Convolutions>(batch, size, channels));
  Observations found;
  Overheads overheads;
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
    const double seconds_before = found.seconds, operators_before = found.operators;
    {
      // The watch costs as much as a small operator, so that it has steps of its own.
      const OperatorWatch watch(c10::kCPU, [&](const SeenOperator& seen) { found.add(seen); });
      for (int i = 0; i < steps; ++i) network->step();
    }
    const double operators = found.operators - operators_before;
    overheads.add((found.seconds - seconds_before) / operators, computing / operators);
    const double mean_wait = comm::reduce_value(world.group(), waiting, comm::ReduceOp::sum) / world.size() / steps;
    jitters.push_back(mean_wait * mean_wait / (computing / steps));
  }
  const auto [launch, factor] = overheads.fit();
  StepRates measured{.jitter_us = rounded(std::max(1e-3, 1e6 * median(std::move(jitters))))};
  auto& out = measured.compute;
  out.launch_us = rounded(1e6 * launch);
  for (std::size_t i = 0; i < kProducts; ++i) out.product.push_back(kLeastProduct * std::pow(2, i));
  for (std::size_t i = 0; i < kBytes; ++i) out.mb.push_back(1e-6 * kLeastBytes * std::pow(8, i));
  const auto set = [factor = factor](const std::vector<double>& rates, double unit, ComputeRates::Rates& list) {
    for (const auto rate : rates) list.push_back(rounded(rate / factor / unit));
  };
  for (const auto& [dtype, list] :
       {std::pair{at::kFloat, &out.tflops_fp32}, {at::kDouble, &out.tflops_fp64}, {at::kBFloat16, &out.tflops_bf16}})
    set(found.rates(Kind::product, kProducts, dtype), 1e12, *list);
  for (std::size_t i = 0; i < kFlops; ++i) out.mflop.push_back(1e-6 * kLeastFlops * std::pow(4, i));
  set(found.rates(Kind::convolution, kFlops), 1e12, out.convolution_tflops);
  for (auto* list : {&out.attention, &out.attention_backward, &out.convolution, &out.tensors}) list->clear();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kBFloat16}) {  // fp16 as bf16
    out.attention.push_back(rounded(found.part_of_products(Kind::attention, dtype)));
    out.attention_backward.push_back(rounded(found.part_of_products(Kind::attention_backward, dtype)));
    out.convolution.push_back(rounded(found.part_of_float(dtype, /*convolutions=*/true)));
    out.tensors.push_back(rounded(found.part_of_float(dtype, /*convolutions=*/false)));
  }
  for (const auto& row : byte_rates()) set(found.rates(row.kind, kBytes), 1e9, out.*row.list);
  return measured;
}

}  // namespace trireme::plan
