// Shapes, and the temporary tensors of the CPU's kernels, of operators by element, lookups, losses and optimizers.
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include <optional>
#include <tuple>

#include "core/plan/meta_rules.h"

namespace trireme::plan {
namespace {

using at::Tensor;

/// Operators without results, which write values into their arguments.
void write_nothing(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

/// Operators by element whose last argument is the output.
void shape_output(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  const auto out = arguments.back().toTensor();
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).add_output(out);
  for (const auto& argument : c10::ArrayRef(arguments).slice(0, arguments.size() - 1))
    if (argument.isTensor()) config.add_owned_const_input(argument.toTensor());
  config.build();
  torch::jit::push(*stack, out);
}

/// LibTorch's own kernel changes the size alone, and asks no allocator for memory.
const Tensor& resize(const Tensor& x, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = x.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  auto* storage = x.storage().unsafeGetStorageImpl();
  const auto bytes = (static_cast<std::size_t>(x.storage_offset() + x.numel())) * x.element_size();
  if (bytes <= storage->nbytes()) return x;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  return x;
}

/// Reductions over all elements.
Tensor reduce_all(const Tensor& x) {
  const auto contiguous = x.expect_contiguous();
  return at::empty({}, x.options());
}

/// The CPU's reductions read a copy of the input in the dtype in which they compute.
Tensor converted(const Tensor& x, at::ScalarType dtype) {
  return work_buffer(x, x.scalar_type() == dtype ? at::IntArrayRef{0} : x.sizes(), dtype);
}

Tensor vector_norm(const Tensor& x, const at::Scalar& order, at::OptionalIntArrayRef dims, bool keep,
                   std::optional<at::ScalarType> dtype) {
  auto norm = at::meta::linalg_vector_norm(x, order, dims, keep, dtype);
  const auto copy = converted(x, dtype.value_or(x.scalar_type()));
  return norm;
}

Tensor sum(const Tensor& x, at::OptionalIntArrayRef dims, bool keep, std::optional<at::ScalarType> dtype) {
  auto result = at::meta::sum(x, dims, keep, dtype);
  const auto copy = converted(x, result.scalar_type());
  return result;
}

/// In half precision the CPU sums and divides in float.
Tensor mean(const Tensor& x, at::OptionalIntArrayRef dims, bool keep, std::optional<at::ScalarType> dtype) {
  auto result = at::meta::mean(x, dims, keep, dtype);
  const bool half = at::isReducedFloatingType(result.scalar_type());
  const auto copy = converted(x, half ? at::kFloat : result.scalar_type());
  const auto in_float = work_buffer(x, half ? result.sizes() : at::IntArrayRef{0}, at::kFloat);
  return result;
}

c10::Scalar zero_of(const Tensor& x) {
  if (x.is_floating_point()) return 0.0;
  return x.scalar_type() == at::kBool ? c10::Scalar(false) : c10::Scalar(0);
}

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const auto dtype = at::result_type(x, y);
  const auto to_dtype = [&](const Tensor& value) { return value.scalar_type() == dtype ? value : value.to(dtype); };
  const auto first = to_dtype(x), second = to_dtype(y);
  return at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .declare_static_dtype(dtype)
      .add_owned_output(Tensor())
      .add_const_input(condition)
      .add_const_input(first)
      .add_const_input(second)
      .build()
      .output();
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  const auto contiguous = x.expect_contiguous();
  auto shape = x.sizes().vec();
  if (!shape.empty()) shape[static_cast<std::size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(shape, x.options());
}

Tensor embedding_backward(const Tensor& gradient, const Tensor& indices, std::int64_t rows, std::int64_t, bool) {
  const auto contiguous_indices = indices.contiguous(), contiguous = gradient.contiguous();
  return at::empty({rows, gradient.size(-1)}, gradient.options());
}

std::tuple<Tensor, Tensor> dropout(const Tensor& x, double, std::optional<bool>) {
  auto y = at::empty_like(x);
  auto mask = at::empty_like(x, at::kBool);
  const auto converted_mask = work_buffer(x, x.sizes(), x.scalar_type());
  return {std::move(y), std::move(mask)};
}

Tensor dropout_backward(const Tensor& gradient, const Tensor& mask, double) {
  const auto scaled_mask = work_buffer(gradient, mask.sizes(), gradient.scalar_type());
  return at::empty_like(gradient);
}

Tensor adaptive_pool(const Tensor& x, at::IntArrayRef size) {
  const auto contiguous = x.contiguous(x.suggest_memory_format());
  auto shape = x.sizes().vec();
  std::copy(size.begin(), size.end(), shape.end() - static_cast<std::ptrdiff_t>(size.size()));
  return at::empty(shape, x.options().memory_format(x.suggest_memory_format()));
}

}  // namespace

void add_pointwise_rules(torch::Library& library) {
  for (const auto* name : {"_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adamw_", "_fused_adamw_.tensor_lr",
                           "_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr",
                           "_amp_foreach_non_finite_check_and_unscale_", "_assert_async", "_assert_async.msg"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&write_nothing>());
  for (const auto* name :
       {"abs.out", "hardtanh.out", "logical_and.out", "logical_not.out", "logical_or.out", "logical_xor.out"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&shape_output>());
  library.impl("resize_", resize);
  for (const auto* name : {"max", "min", "median"}) library.impl(name, reduce_all);
  library.impl("dot", [](const Tensor& x, const Tensor&) { return reduce_all(x); });
  library.impl("linalg_vector_norm", vector_norm);
  library.impl("sum.dim_IntList", sum);
  library.impl("mean.dim", mean);
  library.impl("_local_scalar_dense", zero_of);
  library.impl("relu", [](const Tensor& x) { return at::clamp_min(x, 0); });
  library.impl("relu_", [](Tensor& x) -> Tensor& { return at::clamp_min_(x, 0); });
  library.impl("isnan", [](const Tensor& x) { return x.ne(x); });
  library.impl("where.self", where);
  library.impl("mse_loss_backward",
               [](const Tensor&, const Tensor& x, const Tensor& target, std::int64_t) { return x - target; });
  library.impl("index_select", index_select);
  library.impl("embedding_dense_backward", embedding_backward);
  library.impl("native_dropout", dropout);
  library.impl("native_dropout_backward", dropout_backward);
  library.impl("_adaptive_avg_pool2d", adaptive_pool);
  library.impl("_adaptive_avg_pool2d_backward",
               [](const Tensor&, const Tensor& x) { return at::empty_like(x, {}, x.suggest_memory_format()); });
}

}  // namespace trireme::plan
