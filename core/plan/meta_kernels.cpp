#include "core/plan/meta_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <string_view>
#include <utility>
#include <vector>

#include "core/base/autocast.h"
#include "core/plan/meta_rules.h"

namespace trireme::plan {
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

}  // namespace

MetaKernels::MetaKernels()
    : library_(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__),
      with_gradients_(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__),
      autocast_(torch::Library::IMPL, "aten", kPlannedAutocast, __FILE__, __LINE__) {
  constexpr std::string_view kAten = "aten::";
  add_norm_rules(library_);
  add_convolution_rules(library_);
  add_pointwise_rules(library_);
  add_product_rules(library_);
  add_attention_rules(library_, with_gradients_);
  add_autocast_rules(autocast_);
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

}  // namespace trireme::plan
