// Shapes, and the work buffers of the CPU's kernels, of layer norm, batch norm and group norm (layer_norm.cpp,
// batch_norm.cpp and group_norm.cpp of LibTorch's native folder).
#include <ATen/AccumulateType.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <optional>
#include <tuple>

#include "core/plan/meta_rules.h"

namespace trireme::plan {
namespace {

using at::MemoryFormat;
using at::Tensor;
using Parameter = std::optional<Tensor>;
using Norm = std::tuple<Tensor, Tensor, Tensor>;

Tensor value_of(const Parameter& parameter) { return parameter.value_or(Tensor()); }

/// The options of the saved mean and deviation: on the CPU of the parameters' dtype, on CUDA of the accumulation.
template <class... Parameters>
at::TensorOptions statistics_options(const Tensor& x, const Parameters&... parameters) {
  const auto dtype = stands_for(x) == c10::kCUDA
                         ? at::toAccumulateType(x.scalar_type(), /*is_cuda=*/true)
                         : at::native::param_scalar_type(x, at::native::is_mixed_type(x, value_of(parameters)...));
  return x.options().dtype(dtype);
}

Norm layer_norm(const Tensor& x, at::IntArrayRef normalized, const Parameter& weight, const Parameter& bias, double) {
  const auto contiguous = x.expect_contiguous();
  auto shape = x.sizes().vec();
  for (std::size_t d = shape.size() - normalized.size(); d < shape.size(); ++d) shape[d] = 1;
  const auto options = statistics_options(x, weight, bias);
  auto y = at::empty_like(*contiguous, {}, MemoryFormat::Contiguous);
  auto mean = at::empty(shape, options);
  return {std::move(y), mean, at::empty(shape, options)};
}

Norm layer_norm_backward(const Tensor&, const Tensor& x, at::IntArrayRef normalized, const Tensor&, const Tensor&,
                         const Parameter& weight, const Parameter& bias, std::array<bool, 3> wanted) {
  const auto contiguous = x.expect_contiguous();
  Norm gradients;
  if (wanted[0]) std::get<0>(gradients) = at::empty_like(*contiguous, {}, MemoryFormat::Contiguous);
  if (wanted[1]) std::get<1>(gradients) = at::empty_like(value_of(weight), {}, MemoryFormat::Contiguous);
  if (wanted[2]) std::get<2>(gradients) = at::empty_like(value_of(bias), {}, MemoryFormat::Contiguous);
  const auto sums =
      wanted[1] || wanted[2]
          ? work_buffer(x, {2, at::get_num_threads(), c10::multiply_integers(normalized)}, x.scalar_type())
          : Tensor();
  return gradients;
}

/// The memory format of batch norm's results.
MemoryFormat norm_format(const Tensor& x) {
  return x.is_contiguous() ? MemoryFormat::Contiguous : x.suggest_memory_format();
}

/// Whether the CPU's kernel goes over the memory as it lies.
bool in_one_pass(const Tensor& x) { return x.is_contiguous() || x.is_contiguous(x.suggest_memory_format()); }

/// The sums of the channels that a thread has, where channels are the last dim in memory.
Tensor channel_sums(const Tensor& x, at::ScalarType dtype, std::int64_t sums) {
  const bool last = norm_format(x) != MemoryFormat::Contiguous;
  return work_buffer(x, {last ? sums : 0, at::get_num_threads(), x.size(1)}, dtype);
}

Norm batch_norm(const Tensor& x, const Parameter& weight, const Parameter& bias, const Parameter& running_mean,
                const Parameter& running_var, bool training, double, double) {
  const auto options = statistics_options(x, weight, bias, running_mean, running_var);
  const auto dtype = options.dtype().toScalarType();
  const auto channels = training ? x.size(1) : 0;
  Norm results{at::empty_like(x, {}, norm_format(x)), at::empty({channels}, options), Tensor()};
  if (training && !in_one_pass(x) && dtype != x.scalar_type()) work_buffer(x, x.sizes(), dtype);  // for the mean
  std::get<2>(results) = at::empty({channels}, options);
  const auto statistics = work_buffer(x, {in_one_pass(x) ? 2 : training ? 0 : 3, x.size(1)}, dtype);
  const auto sums = channel_sums(x, dtype, training ? 1 : 0);
  return results;
}

Norm batch_norm_backward(const Tensor& gradient, const Tensor& x, const Parameter& weight,
                         const Parameter& running_mean, const Parameter& running_var, const Parameter& mean,
                         const Parameter& inverse, bool, double, std::array<bool, 3> wanted) {
  const auto options = statistics_options(x, weight, running_mean, running_var, mean, inverse);
  Norm gradients;
  if (wanted[0]) std::get<0>(gradients) = at::empty_like(x, {}, norm_format(x));
  if (wanted[1]) std::get<1>(gradients) = at::empty({x.size(1)}, options);
  if (wanted[2]) std::get<2>(gradients) = at::empty({x.size(1)}, options);
  if (in_one_pass(x) && in_one_pass(gradient) && norm_format(x) == norm_format(gradient)) {
    if (wanted[0]) std::get<0>(gradients) = at::empty_like(x, {}, norm_format(x));  // LibTorch's kernel makes it twice
    const auto sums = channel_sums(x, options.dtype().toScalarType(), 2);
  } else {
    const auto sums = work_buffer(x, {x.size(1)}, x.scalar_type());
  }
  return gradients;
}

Norm group_norm(const Tensor& x, const Parameter& weight, const Parameter& bias, std::int64_t n, std::int64_t channels,
                std::int64_t, std::int64_t groups, double) {
  const auto format = stands_for(x) == c10::kCPU ? x.suggest_memory_format() : MemoryFormat::Contiguous;
  const auto contiguous = x.contiguous(format);
  const auto options = statistics_options(x, weight, bias);
  Norm results{at::empty_like(contiguous, {}, format), at::empty({n, groups}, options),
               at::empty({n, groups}, options)};
  const bool last = format != MemoryFormat::Contiguous;
  const auto factors = work_buffer(x, {last ? n : 0, 2 * channels}, at::toOpMathType(x.scalar_type()));
  return results;
}

Norm group_norm_backward(const Tensor& gradient, const Tensor& x, const Tensor&, const Tensor&, const Parameter& weight,
                         std::int64_t n, std::int64_t channels, std::int64_t, std::int64_t,
                         std::array<bool, 3> wanted) {
  const auto format = stands_for(x) == c10::kCPU ? x.suggest_memory_format() : MemoryFormat::Contiguous;
  const auto contiguous = x.contiguous(format), of_y = gradient.contiguous(format);
  Norm gradients;
  if (wanted[0]) std::get<0>(gradients) = at::empty_like(contiguous, {}, format);
  if (wanted[1]) std::get<1>(gradients) = at::empty_like(value_of(weight), {}, MemoryFormat::Contiguous);
  if (wanted[2]) std::get<2>(gradients) = at::empty_like(value_of(weight), {}, MemoryFormat::Contiguous);
  const auto sums = work_buffer(x, {2, n, channels}, at::toOpMathType(x.scalar_type()));
  return gradients;
}

}  // namespace

void add_norm_rules(torch::Library& library) {
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("native_batch_norm", batch_norm);
  library.impl("native_batch_norm_backward", batch_norm_backward);
  library.impl(
      "_native_batch_norm_legit",
      [](const Tensor& x, const Parameter& weight, const Parameter& bias, Tensor& mean, Tensor& variance, bool training,
         double momentum, double eps) { return batch_norm(x, weight, bias, mean, variance, training, momentum, eps); });
  library.impl("_native_batch_norm_legit.no_stats",
               [](const Tensor& x, const Parameter& weight, const Parameter& bias, bool training, double momentum,
                  double eps) { return batch_norm(x, weight, bias, {}, {}, training, momentum, eps); });
  library.impl("_batch_norm_with_update", [](const Tensor& x, const Parameter& weight, const Parameter& bias,
                                             Tensor& mean, Tensor& variance, double momentum, double eps) {
    return std::tuple_cat(batch_norm(x, weight, bias, mean, variance, true, momentum, eps),
                          std::tuple{at::empty({0}, x.options().dtype(at::kByte))});
  });
  library.impl("batch_norm_backward", [](const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                         const Parameter& running_mean, const Parameter& running_var,
                                         const Parameter& mean, const Parameter& inverse, bool update, double eps,
                                         std::array<bool, 3> wanted, const Tensor&) {
    return batch_norm_backward(gradient, x, weight, running_mean, running_var, mean, inverse, update, eps, wanted);
  });
  library.impl("native_group_norm", group_norm);
  library.impl("native_group_norm_backward", group_norm_backward);
}

}  // namespace trireme::plan
