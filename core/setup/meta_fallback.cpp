#include "core/setup/meta_fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <string_view>
#include <utility>
#include <vector>

namespace trireme::train {
namespace {

/// The tensors of one call: on the meta device as the caller has them, and on the CPU.
class Call {
 public:
  c10::IValue to_cpu(const c10::IValue& value) {
    if (value.isTensor()) return cpu(value.toTensor());
    if (value.isDevice() && value.toDevice().is_meta()) return c10::Device(c10::kCPU);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(cpu(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
        list.push_back(tensor ? std::optional(cpu(*tensor)) : std::nullopt);
      return list;
    }
    return value;
  }

  c10::IValue to_meta(const c10::IValue& value) {
    if (value.isTensor()) return meta(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(meta(tensor));
    return list;
  }

 private:
  at::Tensor cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_meta()) return tensor;
    pairs_.emplace_back(tensor, at::zeros(tensor.sizes(), tensor.options().device(c10::kCPU)));
    return pairs_.back().second;
  }
  at::Tensor meta(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (auto& [original, copy] : pairs_)
      if (copy.is_same(result)) return original.resize_(result.sizes());  // the operator wrote into an argument
    return at::empty_strided(result.sizes(), result.strides(), result.options().device(c10::kMeta));
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Call call;
  const auto inputs = op.schema().arguments().size(), results = op.schema().returns().size();
  for (std::size_t i = 0; i < inputs; ++i) {
    auto& value = torch::jit::peek(*stack, i, inputs);
    value = call.to_cpu(value);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (std::size_t i = 0; i < results; ++i) {
    auto& value = torch::jit::peek(*stack, i, results);
    value = call.to_meta(value);
  }
}

/// The one kernel of a convolution that LibTorch leaves to each device outside its own.
at::Tensor convolve_on_meta(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>&,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, std::int64_t groups) {
  auto shape = input.sizes().vec();
  shape[1] = transposed ? weight.size(1) * groups : weight.size(0);
  for (std::size_t d = 0; d + 2 < shape.size(); ++d) {
    const auto reach = dilation[d] * (weight.sizes()[d + 2] - 1);
    auto& size = shape[d + 2];
    size = transposed ? (size - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d] + 1
                      : (size + 2 * padding[d] - reach - 1) / stride[d] + 1;
  }
  return at::empty(shape, input.options().device(c10::kMeta));
}

}  // namespace

MetaFallback::MetaFallback() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__) {
  constexpr std::string_view kAten = "aten::";
  library_.impl("convolution_overrideable", convolve_on_meta);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(kAten)) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::Meta))
      continue;
    const auto full = c10::toString(name);
    library_.impl(full.c_str() + kAten.size(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace trireme::train
