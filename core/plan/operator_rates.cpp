#include "core/plan/operator_rates.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/trace.h"
#include "core/nn/layers/dropout_mask.h"
#include "core/plan/measured.h"
#include "core/plan/operator_watch.h"

namespace trireme::plan {
namespace {

using Run = std::function<void()>;

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
    return median(std::move(rounds));
  }

 private:
  [[nodiscard]] double round(const Run& run, int calls) const {
    synchronize(device_);
    const double begun = trace::now();
    for (int i = 0; i < calls; ++i) run();
    synchronize(device_);
    return trace::now() - begun;
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

}  // namespace

ComputeRates rates_of_operators(c10::Device device, double seconds) { return Operators(device, seconds).measure(); }

}  // namespace trireme::plan
