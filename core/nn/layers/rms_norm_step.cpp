#include "core/nn/layers/rms_norm_step.h"

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/rsqrt.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/base/planned_device.h"
#include "core/base/vector_widths.h"
#include "core/nn/layers/own_operator.h"

namespace trireme::nn {
namespace {

using Optional = std::optional<at::Tensor>;
using NormOfSum = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  ///< norm, rstd, sum
using Gradients = std::tuple<at::Tensor, at::Tensor>;              ///< of sum and weight

/// The sum of term(i) for i below `count`, in lanes, so that it can be vectorized.
template <class T, class Term>
[[gnu::always_inline]] inline T sum_of(std::int64_t count, const Term& term) {
  constexpr std::int64_t kLanes = 32;
  T lanes[kLanes] = {}, sum = 0;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (; i < count; ++i) sum += term(i);
  for (const T lane : lanes) sum += lane;
  return sum;
}

template <class T>
struct ForwardRows {
  const T *x, *residual, *weight;  ///< without a residual, `sum` is not written
  T *norm, *rstd, *sum;
  std::int64_t width;
  double eps;
};
template <class T>
[[gnu::always_inline]] inline void forward_rows(const ForwardRows<T>& t, std::int64_t begin, std::int64_t end) {
  for (auto row = begin; row < end; ++row) {
    const auto at = row * t.width;
    const T *in = t.x + at, *weight = t.weight;
    if (t.residual != nullptr) {
      const T* beside = t.residual + at;
      T* sum = t.sum + at;
      for (std::int64_t i = 0; i < t.width; ++i) sum[i] = beside[i] + in[i];
      in = sum;
    }
    const T squares = sum_of<T>(t.width, [in](std::int64_t i) { return in[i] * in[i]; });
    const T rstd = 1 / std::sqrt(squares / static_cast<T>(t.width) + static_cast<T>(t.eps));
    t.rstd[row] = rstd;
    T* norm = t.norm + at;
    for (std::int64_t i = 0; i < t.width; ++i) norm[i] = in[i] * rstd * weight[i];
  }
}
TRIREME_VECTOR_WIDTHS void run(const ForwardRows<float>& t, std::int64_t begin, std::int64_t end) {
  forward_rows(t, begin, end);
}
TRIREME_VECTOR_WIDTHS void run(const ForwardRows<double>& t, std::int64_t begin, std::int64_t end) {
  forward_rows(t, begin, end);
}

// With g = of_norm * weight, the sum's gradient is rstd * (g - sum * rstd^2 * mean(g * sum)).
template <class T>
struct BackwardRows {
  const T *of_norm, *of_sum, *sum, *rstd, *weight;  ///< of_sum may be null
  T* out;
  std::int64_t width;
};
template <class T>
[[gnu::always_inline]] inline void backward_rows(const BackwardRows<T>& t, std::int64_t begin, std::int64_t end) {
  for (auto row = begin; row < end; ++row) {
    const auto at = row * t.width;
    const T *of_norm = t.of_norm + at, *in = t.sum + at, *weight = t.weight;
    const T along = sum_of<T>(t.width, [=](std::int64_t i) { return of_norm[i] * weight[i] * in[i]; });
    const T rstd = t.rstd[row], back = rstd * rstd * rstd * along / static_cast<T>(t.width);
    T* out = t.out + at;
    if (t.of_sum == nullptr) {
      for (std::int64_t i = 0; i < t.width; ++i) out[i] = rstd * of_norm[i] * weight[i] - back * in[i];
    } else {
      const T* beside = t.of_sum + at;
      for (std::int64_t i = 0; i < t.width; ++i) out[i] = beside[i] + (rstd * of_norm[i] * weight[i] - back * in[i]);
    }
  }
}
TRIREME_VECTOR_WIDTHS void run(const BackwardRows<float>& t, std::int64_t begin, std::int64_t end) {
  backward_rows(t, begin, end);
}
TRIREME_VECTOR_WIDTHS void run(const BackwardRows<double>& t, std::int64_t begin, std::int64_t end) {
  backward_rows(t, begin, end);
}

/// The weight's gradient: of_norm * sum * rstd, summed over the rows. Threads share the columns, so that the result
/// does not depend on their number.
template <class T>
struct WeightColumns {
  const T *of_norm, *sum, *rstd;
  T* out;
  std::int64_t rows, width;
};
template <class T>
[[gnu::always_inline]] inline void weight_columns(const WeightColumns<T>& t, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kRowsTogether = 64;  // sums of sums round less than one long sum
  const auto count = end - begin;
  std::vector<T> memory(static_cast<std::size_t>(count));
  T *part = memory.data(), *out = t.out + begin;
  std::fill(out, out + count, T(0));
  for (std::int64_t first = 0; first < t.rows; first += kRowsTogether) {
    std::fill(part, part + count, T(0));
    for (auto row = first; row < std::min(first + kRowsTogether, t.rows); ++row) {
      const T *of_norm = t.of_norm + row * t.width + begin, *in = t.sum + row * t.width + begin;
      const T rstd = t.rstd[row];
      for (std::int64_t i = 0; i < count; ++i) part[i] += of_norm[i] * in[i] * rstd;
    }
    for (std::int64_t i = 0; i < count; ++i) out[i] += part[i];
  }
}
TRIREME_VECTOR_WIDTHS void run(const WeightColumns<float>& t, std::int64_t begin, std::int64_t end) {
  weight_columns(t, begin, end);
}
TRIREME_VECTOR_WIDTHS void run(const WeightColumns<double>& t, std::int64_t begin, std::int64_t end) {
  weight_columns(t, begin, end);
}

/// Runs all of `count` rows or columns, which have `size` elements each.
template <class Part>
void run_in_parts(const Part& part, std::int64_t count, std::int64_t size) {
  constexpr std::int64_t kGrain = 1 << 15;  // elements that are worth a thread
  at::parallel_for(0, count, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, size)),
                   [&](std::int64_t begin, std::int64_t end) { run(part, begin, end); });
}

std::int64_t rows_of(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

/// Whether one kernel has these tensors; otherwise they are left to LibTorch's operators.
bool has_kernel(const at::Tensor& x, const at::Tensor& weight) {
  const auto type = x.scalar_type();
  return type == weight.scalar_type() &&
         (type_of(x.device()) == c10::kCUDA || type == at::kFloat || type == at::kDouble);
}

NormOfSum new_memory(const at::Tensor& x, bool has_residual) {
  const auto per_row = x.options().dtype(at::toOpMathType(x.scalar_type()));
  return {at::empty_like(x), at::empty({rows_of(x)}, per_row), has_residual ? at::empty_like(x) : at::Tensor()};
}
Gradients new_memory(const at::Tensor& sum, const at::Tensor& weight, std::array<bool, 2> wanted) {
  return {wanted[0] ? at::empty_like(sum) : at::Tensor(), wanted[1] ? at::empty_like(weight) : at::Tensor()};
}

template <class T>
void fill(const NormOfSum& made, const at::Tensor& x, const Optional& residual, const at::Tensor& weight, double eps) {
  const auto& [norm, rstd, sum] = made;
  run_in_parts(ForwardRows<T>{x.const_data_ptr<T>(), residual ? residual->const_data_ptr<T>() : nullptr,
                              weight.const_data_ptr<T>(), norm.template mutable_data_ptr<T>(),
                              rstd.template mutable_data_ptr<T>(),
                              residual ? sum.template mutable_data_ptr<T>() : nullptr, x.size(-1), eps},
               rows_of(x), x.size(-1));
}

template <class T>
void fill(const Gradients& made, const at::Tensor& of_norm, const Optional& of_sum, const at::Tensor& sum,
          const at::Tensor& rstd, const at::Tensor& weight) {
  const auto& [of_x, of_weight] = made;
  const auto rows = rows_of(sum), width = weight.numel();
  const auto *incoming = of_norm.const_data_ptr<T>(), *in = sum.const_data_ptr<T>(), *factor = rstd.const_data_ptr<T>();
  if (of_x.defined())
    run_in_parts(BackwardRows<T>{incoming, of_sum ? of_sum->const_data_ptr<T>() : nullptr, in, factor,
                                 weight.const_data_ptr<T>(), of_x.template mutable_data_ptr<T>(), width},
                 rows, width);
  if (of_weight.defined())
    run_in_parts(WeightColumns<T>{incoming, in, factor, of_weight.template mutable_data_ptr<T>(), rows, width}, width,
                 rows);
}

/// With operators for a sum of two dtypes, whose norm may yet have a kernel.
template <class Step>
NormOfSum with_sum(const at::Tensor& x, const Optional& residual, const Step& step) {
  if (!residual || residual->scalar_type() == x.scalar_type()) return step(x, residual);
  const auto sum = *residual + x;
  auto made = step(sum, std::nullopt);
  std::get<2>(made) = sum;
  return made;
}

NormOfSum forward_on_cpu(const at::Tensor& input, const Optional& beside, const at::Tensor& weight, double eps) {
  return with_sum(input, beside, [&](const at::Tensor& x, const Optional& residual) {
    if (!has_kernel(x, weight)) return rms_norm_by_operators(x, residual, weight, eps);
    auto made = new_memory(x, residual.has_value());
    if (x.scalar_type() == at::kFloat)
      fill<float>(made, x, residual, weight, eps);
    else
      fill<double>(made, x, residual, weight, eps);
    return made;
  });
}

NormOfSum forward_on_meta(const at::Tensor& input, const Optional& beside, const at::Tensor& weight, double eps) {
  return with_sum(input, beside, [&](const at::Tensor& x, const Optional& residual) {
    return has_kernel(x, weight) ? new_memory(x, residual.has_value())
                                 : rms_norm_by_operators(x, residual, weight, eps);
  });
}

Gradients backward_on_cpu(const at::Tensor& of_norm, const Optional& of_sum, const at::Tensor& sum,
                          const at::Tensor& rstd, const at::Tensor& weight, std::array<bool, 2> wanted) {
  if (!has_kernel(sum, weight)) return rms_norm_backward_by_operators(of_norm, of_sum, sum, rstd, weight, wanted);
  auto made = new_memory(sum, weight, wanted);
  if (sum.scalar_type() == at::kFloat)
    fill<float>(made, of_norm, of_sum, sum, rstd, weight);
  else
    fill<double>(made, of_norm, of_sum, sum, rstd, weight);
  return made;
}

Gradients backward_on_meta(const at::Tensor& of_norm, const Optional& of_sum, const at::Tensor& sum,
                           const at::Tensor& rstd, const at::Tensor& weight, std::array<bool, 2> wanted) {
  return has_kernel(sum, weight) ? new_memory(sum, weight, wanted)
                                 : rms_norm_backward_by_operators(of_norm, of_sum, sum, rstd, weight, wanted);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_by_operators(const at::Tensor& x, const Optional& residual,
                                                                     const at::Tensor& weight, double eps) {
  auto sum = residual ? *residual + x : at::Tensor();
  const auto& in = residual ? sum : x;
  const auto wide = in.to(at::toOpMathType(in.scalar_type()));
  const auto rstd = at::rsqrt(wide.square().mean(-1, true) + eps);
  const auto normed = (wide * rstd).to(in.scalar_type());
  auto norm = weight * normed.to(at::promote_types(in.scalar_type(), weight.scalar_type()));
  return {std::move(norm), rstd.flatten(), std::move(sum)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_by_operators(const at::Tensor& of_norm, const Optional& of_sum,
                                                                  const at::Tensor& sum, const at::Tensor& rstd,
                                                                  const at::Tensor& weight,
                                                                  std::array<bool, 2> wanted) {
  const auto type = rstd.scalar_type();
  const auto per_row = rstd.view(sum.sizes().slice(0, static_cast<std::size_t>(sum.dim() - 1))).unsqueeze(-1);
  const auto normed = sum.to(type) * per_row;
  Gradients out;
  if (wanted[0]) {
    const auto g = of_norm.to(type) * weight.to(type);
    auto of_x = per_row * (g - normed * (g * normed).mean(-1, true));
    if (of_sum) of_x += *of_sum;
    std::get<0>(out) = of_x.to(sum.scalar_type());
  }
  if (wanted[1]) std::get<1>(out) = (of_norm.to(type) * normed).flatten(0, -2).sum(0).to(weight.scalar_type());
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const Optional& residual,
                                                        const at::Tensor& weight, double eps) {
  static const auto step = own_operator<decltype(rms_norm)>("trireme::rms_norm");
  return step.call(x, residual, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& of_norm, const Optional& of_sum,
                                                     const at::Tensor& sum, const at::Tensor& rstd,
                                                     const at::Tensor& weight, std::array<bool, 2> wanted) {
  static const auto step = own_operator<decltype(rms_norm_backward)>("trireme::rms_norm_backward");
  return step.call(of_norm, of_sum, sum, rstd, weight, wanted);
}

}  // namespace trireme::nn

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)");
  library.def(
      "rms_norm_backward(Tensor of_norm, Tensor? of_sum, Tensor sum, Tensor rstd, Tensor weight, bool[2] wanted) -> "
      "(Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CompositeExplicitAutograd, library) {
  library.impl("rms_norm", trireme::nn::rms_norm_by_operators);
  library.impl("rms_norm_backward", trireme::nn::rms_norm_backward_by_operators);
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("rms_norm", trireme::nn::forward_on_cpu);
  library.impl("rms_norm_backward", trireme::nn::backward_on_cpu);
}
TORCH_LIBRARY_IMPL(trireme, Meta, library) {
  library.impl("rms_norm", trireme::nn::forward_on_meta);
  library.impl("rms_norm_backward", trireme::nn::backward_on_meta);
}
