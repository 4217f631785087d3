#include "core/plan/calibration.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/cores.h"
#include "core/comm/devices.h"
#include "core/comm/host_values.h"
#include "core/nn/layers/dropout_mask.h"
#include "core/plan/operator_watch.h"

namespace trireme::plan {
namespace {

using Clock = std::chrono::steady_clock;
using Run = std::function<void()>;

/// Waits until the device has done what was launched.
void synchronize(c10::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// The median seconds of a call, of several rounds that take `seconds` together.
class Stopwatch {
 public:
  Stopwatch(c10::Device device, double seconds) : device_(device), seconds_(seconds) {}

  [[nodiscard]] double of(const Run& run) const {
    constexpr int kRounds = 7;
    run();
    int calls = 1;
    double once = 0;
    while ((once = round(run, calls)) < seconds_ / kRounds && calls < 1 << 20) calls *= 2;
    std::vector<double> rounds{once / calls};
    while (rounds.size() < kRounds) rounds.push_back(round(run, calls) / calls);
    std::sort(rounds.begin(), rounds.end());
    return rounds[kRounds / 2];
  }

 private:
  [[nodiscard]] double round(const Run& run, int calls) const {
    synchronize(device_);
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) run();
    synchronize(device_);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  c10::Device device_;
  double seconds_;
};

/// What a call does, as the forecast counts it.
Work work_of(c10::Device device, const Run& run) {
  Work sum;
  const OperatorWatch watch(device.type(), [&](const SeenOperator& seen) {
    const auto& work = seen.work;
    if (work.kind == Kind::view) return;
    sum.kind = work.kind;
    sum.flops += work.flops;
    sum.bytes += work.bytes;
    sum.dtype = work.dtype;
  });
  run();
  return sum;
}

/// An operator on tensors of about so many elements.
using Make = std::function<Run(std::int64_t elements)>;

/// Three digits, as a file shows them.
double rounded(double value) {
  if (!(value > 0)) return 0;
  const double scale = std::pow(10, 2 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

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

/// How many times as fast a rank of the CPU computes while the others wait.
double speed_alone(comm::World& world) {
  constexpr int kSteps = 20;
  Transformer network(16, 50, 128);
  const auto median = [&] {
    std::vector<double> seconds;
    for (int i = 0; i < kSteps; ++i) {
      const auto begin = Clock::now();
      network.step();
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[kSteps / 2];
  };
  double alone = 0;
  if (world.rank() == 0) alone = median();
  world.group().barrier();
  const double together = median();
  world.group().barrier();
  return world.rank() == 0 ? std::max(1.0, together / alone) : 1;
}

/// The rates of steps of small networks on the CPU, and how far apart the ranks end them (LinkRates).
ComputeRates rates_in_steps(comm::World& world, double seconds, double& jitter_us) {
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
  const auto now = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); };
  for (auto& network : networks) {
    network->step();
    const double first = now();
    network->step();
    const double step = comm::reduce_value(world.group(), now() - first, comm::ReduceOp::max);
    const auto steps =
        static_cast<int>(std::clamp(seconds / static_cast<double>(2 * networks.size()) / step, 2.0, 1000.0));
    double computing = 0, waiting = 0;
    for (int i = 0; i < steps; ++i) {
      const double begun = now();
      network->step();
      const double computed = now();
      world.group().barrier();
      computing += computed - begun;
      waiting += now() - computed;
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
  std::sort(jitters.begin(), jitters.end());
  jitter_us = rounded(std::max(1e-3, 1e6 * jitters[jitters.size() / 2]));
  const auto [launch, factor] = overheads.fit();
  ComputeRates out{.launch_us = rounded(1e6 * launch)};
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
  for (const auto& [kind, list] : {std::pair{Kind::copy, &out.copy_gb_per_s},
                                   {Kind::pointwise, &out.pointwise_gb_per_s},
                                   {Kind::activation, &out.activation_gb_per_s},
                                   {Kind::norm, &out.norm_gb_per_s},
                                   {Kind::softmax, &out.softmax_gb_per_s},
                                   {Kind::random, &out.random_gb_per_s},
                                   {Kind::dropout, &out.dropout_gb_per_s},
                                   {Kind::optimizer, &out.optimizer_gb_per_s}})
    set(found.rates(kind, kBytes), 1e9, *list);
  return out;
}

/// The rates of operators alone on a GPU, whose operators run on other threads than their launches.
class Operators {
 public:
  Operators(c10::Device device, double seconds)
      : device_(device), options_(at::TensorOptions(at::kFloat).device(device)), watch_(device, seconds) {}

  ComputeRates measure() {
    const at::NoGradGuard no_grad;
    const auto x = ones(1), y = ones(1);
    auto sum = ones(1);
    rates_.launch_us = rounded(1e6 * watch_.of([&] { at::add_out(sum, x, y); }));
    products();
    rates_.attention = rates_.attention_backward = {rounded(attention())};
    by_size();
    return std::move(rates_);
  }

 private:
  [[nodiscard]] at::Tensor ones(std::int64_t elements) const { return at::ones({elements}, options_); }
  [[nodiscard]] double launch() const { return 1e-6 * rates_.launch_us; }
  /// Without the part that any operator takes.
  [[nodiscard]] double seconds_of(const Run& run) const {
    const double all = watch_.of(run);
    return std::max(all - launch(), all / 10);
  }

  void products() {
    const std::vector<std::int64_t> sizes{128, 512, 1024, 2048, 4096, 8192};
    rates_.product.assign(sizes.begin(), sizes.end());
    for (const auto& [dtype, list] : {std::pair{at::kFloat, &rates_.tflops_fp32},
                                      {at::kDouble, &rates_.tflops_fp64},
                                      {at::kBFloat16, &rates_.tflops_bf16}})
      for (const auto size : sizes) {
        const auto a = at::ones({size, size}, options_.dtype(dtype)), b = at::ones({size, size}, a.options());
        auto out = at::empty({size, size}, a.options());
        list->push_back(
            rounded(2e-12 * std::pow(static_cast<double>(size), 3) / seconds_of([&] { at::mm_out(out, a, b); })));
      }
  }

  /// FLOP/s beside those of products of the same size.
  double attention() {
    const auto q = at::ones({8, 4, 128, 64}, options_);
    const Run run = [&] { at::scaled_dot_product_attention(q, q, q); };
    const double seconds = seconds_of(run);
    auto work = work_of(device_, run);
    work.kind = Kind::product;
    Machine machine;
    machine.compute = rates_;
    machine.compute.launch_us = 0;
    return machine.seconds(work) / seconds;
  }

  void by_size() {
    const auto copy = [this](std::int64_t n) -> Run {
      return [to = ones(n), from = ones(n)] { at::Tensor(to).copy_(from); };
    };
    const auto add = [this](std::int64_t n) -> Run {
      return [a = ones(n), b = ones(n), out = ones(n)]() mutable { at::add_out(out, a, b); };
    };
    const auto activation = [this](std::int64_t n) -> Run { return [x = ones(n)] { at::gelu(x); }; };
    const auto norm = [this](std::int64_t n) -> Run {
      return [x = at::ones({n / 256, 256}, options_), w = ones(256)] { at::layer_norm(x, {256}, w, w); };
    };
    const auto softmax = [this](std::int64_t n) -> Run {
      return [x = at::ones({n / 128, 128}, options_)] { at::softmax(x, -1); };
    };
    const auto random = [this](std::int64_t n) -> Run {
      return [n, ids = at::arange(16, at::kLong), device = device_] {
        nn::dropout_mask(7, 0.1, ids, {.count = n / 16}, device);
      };
    };
    const auto adamw = [this](std::int64_t n) -> Run {
      return [p = ones(n), g = ones(n), m = ones(n), v = ones(n), step = at::ones({}, options_)] {
        at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false);
      };
    };
    constexpr double most = 1 << 26;
    std::vector<std::int64_t> sizes;
    for (std::int64_t n = 1 << 12; static_cast<double>(n) <= most; n *= 8) sizes.push_back(n);
    for (const auto size : sizes) rates_.mb.push_back(rounded(8e-6 * static_cast<double>(size)));
    for (const auto& [make, list] : {std::pair<Make, ComputeRates::Rates*>{copy, &rates_.copy_gb_per_s},
                                     {add, &rates_.pointwise_gb_per_s},
                                     {activation, &rates_.activation_gb_per_s},
                                     {norm, &rates_.norm_gb_per_s},
                                     {softmax, &rates_.softmax_gb_per_s},
                                     {random, &rates_.random_gb_per_s},
                                     {adamw, &rates_.optimizer_gb_per_s}})
      for (const auto size : sizes) {
        const auto run = make(size);
        const double seconds = seconds_of(run);
        list->push_back(rounded(1e-9 * work_of(device_, run).bytes / seconds));
      }
  }

  c10::Device device_;
  at::TensorOptions options_;
  Stopwatch watch_;
  ComputeRates rates_;
};

/// Latency and rate from all-reduces of a short and of a long tensor.
LinkRates measure_link(comm::World& world, double seconds) {
  const auto& group = world.group();
  const int rounds = 2 * (group.size() - 1);
  const auto time_of = [&](std::int64_t elements) {
    const auto tensor = at::zeros({elements}, at::TensorOptions(at::kFloat).device(world.device()));
    // Every rank must call it as often.
    const int calls = static_cast<int>(std::clamp(seconds * 1e8 / static_cast<double>(elements + 1000), 3.0, 2000.0));
    std::vector<double> each;
    for (int i = 0; i < calls; ++i) {
      synchronize(world.device());
      const auto begin = Clock::now();
      group.all_reduce(tensor);
      synchronize(world.device());
      each.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(each.begin(), each.end());
    return each[each.size() / 2];
  };
  constexpr std::int64_t kLong = 1 << 20;
  time_of(1);
  const double brief = time_of(1), lengthy = time_of(kLong);
  const double bytes = rounds / static_cast<double>(group.size()) * 4 * kLong;
  return {.latency_us = rounded(1e6 * brief / rounds),
          .gb_per_s = rounded(1e-9 * bytes / std::max(lengthy - brief, lengthy / 10))};
}

}  // namespace

Machine measure_machine(comm::World& world, double seconds) {
  constexpr double kMeasurements = 70;  // about as many as there are
  Machine machine{.name = world.device().is_cuda() ? comm::cuda_device_name(world.device().index()) : "CPU",
                  .device = world.device().is_cuda() ? "cuda" : "cpu",
                  .ranks_per_host = world.info().local_size};
  world.group().barrier();
  double jitter_us = 0;
  if (world.device().is_cuda()) {
    machine.compute = Operators(world.device(), seconds / kMeasurements).measure();
  } else {
    machine.cores = usable_cores();
    if (world.size() > 1) machine.alone = rounded(speed_alone(world));
    machine.compute = rates_in_steps(world, seconds, jitter_us);
  }
  world.group().barrier();
  machine.inside = world.size() > 1 ? measure_link(world, seconds / kMeasurements) : LinkRates{1, 10};
  if (world.size() > 1) machine.inside.jitter_us = jitter_us;
  machine.between = machine.inside;
  return machine;
}

}  // namespace trireme::plan
