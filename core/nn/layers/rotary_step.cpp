#include "core/nn/layers/rotary_step.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>

#include "core/base/planned_device.h"
#include "core/base/vector_widths.h"
#include "core/nn/layers/own_operator.h"

namespace trireme::nn {
namespace {

/// Steps between samples, heads and tokens, in elements.
struct Steps {
  std::int64_t sample, head, token;
};
template <class T>
struct Rotation {
  const T *from, *cos, *sin;
  T* to;
  Steps read, written;
  std::int64_t heads, tokens, half;
  std::int64_t angle_sample;  ///< elements of cos between samples; 0: they share the angles
  T sign;
};

/// Rotates tokens begin..end - 1 of all samples.
template <class T>
[[gnu::always_inline]] inline void rotate_tokens(const Rotation<T>& r, std::int64_t begin, std::int64_t end) {
  for (auto at = begin; at < end; ++at) {
    const auto sample = at / r.tokens, token = at % r.tokens;
    const auto angle = sample * r.angle_sample + token * 2 * r.half;
    const T *cos = r.cos + angle, *sin = r.sin + angle;
    for (std::int64_t head = 0; head < r.heads; ++head) {
      const T* x = r.from + sample * r.read.sample + head * r.read.head + token * r.read.token;
      T* y = r.to + sample * r.written.sample + head * r.written.head + token * r.written.token;
      for (std::int64_t i = 0; i < r.half; ++i) {
        const T a = x[i], b = x[i + r.half], s = r.sign * sin[i];
        y[i] = a * cos[i] - b * s;
        y[i + r.half] = b * cos[i] + a * s;
      }
    }
  }
}
TRIREME_VECTOR_WIDTHS void run(const Rotation<float>& r, std::int64_t begin, std::int64_t end) {
  rotate_tokens(r, begin, end);
}
TRIREME_VECTOR_WIDTHS void run(const Rotation<double>& r, std::int64_t begin, std::int64_t end) {
  rotate_tokens(r, begin, end);
}

template <class T>
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  auto y = at::empty_like(x);
  const Rotation<T> rotation{.from = x.const_data_ptr<T>(),
                             .cos = cos.const_data_ptr<T>(),
                             .sin = sin.const_data_ptr<T>(),
                             .to = y.template mutable_data_ptr<T>(),
                             .read = {x.stride(0), x.stride(1), x.stride(2)},
                             .written = {y.stride(0), y.stride(1), y.stride(2)},
                             .heads = x.size(1),
                             .tokens = x.size(2),
                             .half = x.size(3) / 2,
                             .angle_sample = cos.dim() == 4 ? cos.stride(0) : 0,
                             .sign = static_cast<T>(back ? -1 : 1)};
  constexpr std::int64_t kGrain = 1 << 14;  // elements that are worth a thread
  at::parallel_for(0, x.size(0) * x.size(2), kGrain / std::max<std::int64_t>(1, x.size(1) * x.size(3)) + 1,
                   [&](std::int64_t begin, std::int64_t end) { run(rotation, begin, end); });
  return y;
}

bool has_pass(const at::Tensor& x) { return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble; }
/// The rows of features must lie together.
at::Tensor with_whole_rows(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

at::Tensor rotate_on_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  if (!has_pass(x)) return rotate_by_operators(x, cos, sin, back);
  const auto from = with_whole_rows(x);
  return x.scalar_type() == at::kFloat ? rotated<float>(from, cos, sin, back) : rotated<double>(from, cos, sin, back);
}

at::Tensor rotate_on_meta(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const bool in_one_pass = type_of(x.device()) == c10::kCPU && has_pass(x);
  return in_one_pass ? at::empty_like(with_whole_rows(x)) : rotate_by_operators(x, cos, sin, back);
}

}  // namespace

at::Tensor rotate_by_operators(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const auto c = cos.narrow(-2, 0, x.size(2)), s = sin.narrow(-2, 0, x.size(2));
  const auto first = x.narrow(3, 0, x.size(3) / 2), second = x.narrow(3, x.size(3) / 2, x.size(3) / 2);
  return x * c + (back ? at::cat({second, -first}, 3) : at::cat({-second, first}, 3)) * s;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  static const auto step = own_operator<decltype(rotate)>("trireme::rotate");
  return step.call(x, cos, sin, back);
}

}  // namespace trireme::nn

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("rotate(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor");
}
TORCH_LIBRARY_IMPL(trireme, CompositeExplicitAutograd, library) {
  library.impl("rotate", trireme::nn::rotate_by_operators);
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) { library.impl("rotate", trireme::nn::rotate_on_cpu); }
TORCH_LIBRARY_IMPL(trireme, Meta, library) { library.impl("rotate", trireme::nn::rotate_on_meta); }
