// Autocast on a planned device: which operators cast their arguments is read from LibTorch's kernels for autocast on
// the CPU and on CUDA, and how from its lists; the casts are those of core/base/autocast.h.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/autocast.h"
#include "core/plan/meta_rules.h"

namespace trireme::plan {
namespace {

/// What autocast does with an operator on one type of device.
enum class CastPolicy : std::uint8_t {
  none,
  lower,           ///< casts all arguments to autocast's dtype
  to_float,        ///< casts all arguments to float
  float_result,    ///< sets the operator's dtype argument to float where the caller has set none
  float_overload,  ///< calls the overload with a dtype argument, with float
  promote,         ///< casts all arguments to float if one is float, else to autocast's dtype
};

#define TRIREME_OPERATOR_NAME(name, ...) std::string_view(#name),
constexpr std::array kLower{AT_FORALL_LOWER_PRECISION_FP(TRIREME_OPERATOR_NAME) std::string_view("cudnn_convolution"),
                            std::string_view("cudnn_convolution_transpose"), std::string_view("_addmm_activation"),
                            std::string_view("mkldnn_rnn_layer"), std::string_view("_native_multi_head_attention")};
constexpr std::array kPromotedOnCuda{AT_FORALL_PROMOTE(TRIREME_OPERATOR_NAME) std::string_view()};
#undef TRIREME_OPERATOR_NAME
constexpr std::array<std::string_view, 3> kPromotedOnCpu{"stack", "cat", "index_copy"};

template <class Names>
bool has_name(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

CastPolicy policy_of(const c10::OperatorHandle& op, std::string_view name, c10::DeviceType device) {
  if (!op.hasKernelForDispatchKey(at::autocast::get_autocast_dispatch_key_from_device_type(device)))
    return CastPolicy::none;
  if (has_name(kLower, name)) return CastPolicy::lower;
  if (device == c10::kCPU) return has_name(kPromotedOnCpu, name) ? CastPolicy::promote : CastPolicy::to_float;
  if (has_name(kPromotedOnCuda, name)) return CastPolicy::promote;
  if (name == "norm") return CastPolicy::float_overload;
  return op.schema().argumentIndexWithName("dtype") ? CastPolicy::float_result : CastPolicy::to_float;
}

/// An operator's kernel of the key kPlannedAutocast.
class AutocastKernel final : public c10::OperatorKernel {
 public:
  AutocastKernel(CastPolicy on_cpu, CastPolicy on_cuda) : on_cpu_(on_cpu), on_cuda_(on_cuda) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    const auto* planned = PlannedDevice::current();
    const auto device = planned != nullptr ? planned->type() : c10::kCPU;
    // The second key is for operators that run on the CPU with zeros: there too, nothing is cast twice.
    const c10::impl::ExcludeDispatchKeyGuard below(
        c10::DispatchKeySet({kPlannedAutocast, at::autocast::get_autocast_dispatch_key_from_device_type(device)}));
    const auto lower = at::autocast::get_autocast_dtype(device);
    const auto count = op.schema().arguments().size();
    const auto& first = torch::jit::peek(*stack, 0, count);
    const bool applies = first.isTensor() && is_planned_autocast_eligible(first.toTensor());
    switch (device == c10::kCPU ? on_cpu_ : on_cuda_) {
      case CastPolicy::none:
        break;
      case CastPolicy::lower:
        cast(*stack, count, lower);
        break;
      case CastPolicy::to_float:
        cast(*stack, count, at::kFloat);
        break;
      case CastPolicy::promote:
        cast(*stack, count, has_float(*stack, count) ? at::kFloat : lower);
        break;
      case CastPolicy::float_result: {
        auto& dtype =
            torch::jit::peek(*stack, static_cast<std::size_t>(*op.schema().argumentIndexWithName("dtype")), count);
        if (applies && dtype.isNone()) dtype = at::kFloat;
        break;
      }
      case CastPolicy::float_overload: {
        const auto& overload = op.operator_name().overload_name;
        const auto typed = overload == "Scalar" ? "ScalarOpt_dtype" : overload + "_dtype";
        torch::jit::push(*stack, applies ? at::kFloat : first.toTensor().scalar_type());
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::norm", typed.c_str()).callBoxed(stack);
        return;
      }
    }
    op.callBoxed(stack);
  }

 private:
  static void cast(torch::jit::Stack& stack, std::size_t count, at::ScalarType dtype) {
    for (auto value = stack.end() - static_cast<std::ptrdiff_t>(count); value != stack.end(); ++value) {
      if (value->isTensor()) *value = planned_autocast(value->toTensor(), dtype);
      if (!value->isTensorList()) continue;
      c10::List<at::Tensor> list;
      for (const auto& tensor : value->toTensorVector()) list.push_back(planned_autocast(tensor, dtype));
      *value = std::move(list);
    }
  }
  static bool has_float(const torch::jit::Stack& stack, std::size_t count) {
    const auto is_float = [](const at::Tensor& x) {
      return is_planned_autocast_eligible(x) && x.scalar_type() == at::kFloat;
    };
    return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end(), [&](const c10::IValue& value) {
      if (value.isTensor()) return is_float(value.toTensor());
      if (!value.isTensorList()) return false;
      const auto list = value.toTensorVector();
      return std::any_of(list.begin(), list.end(), is_float);
    });
  }
  CastPolicy on_cpu_, on_cuda_;
};

}  // namespace

void add_autocast_rules(torch::Library& library) {
  constexpr std::string_view kNamespace = "aten::";
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& full : dispatcher.getAllOpNames()) {
    if (!full.name.starts_with(kNamespace)) continue;
    const auto op = dispatcher.findOp(full);
    if (!op || !op->hasSchema()) continue;
    const auto name = std::string_view(full.name).substr(kNamespace.size());
    const auto on_cpu = policy_of(*op, name, c10::kCPU), on_cuda = policy_of(*op, name, c10::kCUDA);
    if (on_cpu == CastPolicy::none && on_cuda == CastPolicy::none) continue;
    library.impl(c10::toString(full).c_str() + kNamespace.size(),
                 torch::CppFunction::makeFromBoxedKernel(
                     c10::BoxedKernel::makeFromFunctor(std::make_unique<AutocastKernel>(on_cpu, on_cuda))));
  }
}

}  // namespace trireme::plan
