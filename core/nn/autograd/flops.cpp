#include "core/nn/autograd/flops.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace trireme::nn {
namespace {

using Values = c10::ArrayRef<const c10::IValue>;

double numel(const c10::IValue& tensor) { return static_cast<double>(tensor.toTensor().numel()); }

/// Inputs: input, weight, bias, stride, padding, dilation. Lists have one number per spatial dim, or one for all.
double convolution_flops(const Values& in) {
  const auto input = in.at(0).toTensor(), weight = in.at(1).toTensor();
  const auto of = [](const c10::IValue& value, std::int64_t dim) {
    const auto list = value.toIntVector();
    return list.size() == 1 ? list.front() : list.at(static_cast<std::size_t>(dim));
  };
  auto made = static_cast<double>(input.size(0) * weight.size(0));
  for (std::int64_t d = 0; d + 2 < input.dim(); ++d) {
    const auto reach = of(in.at(5), d) * (weight.size(d + 2) - 1) + 1;
    made *= static_cast<double>((input.size(d + 2) + 2 * of(in.at(4), d) - reach) / of(in.at(3), d) + 1);
  }
  return 2 * made * static_cast<double>(weight.numel() / weight.size(0));
}

}  // namespace

double flops_of(std::string_view name, Values in) {
  const auto product = [&](std::size_t a, std::size_t b) {
    return 2 * numel(in.at(a)) * static_cast<double>(in.at(b).toTensor().size(-1));
  };
  if (name == "aten::mm" || name == "aten::bmm") return product(0, 1);
  if (name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm") return product(1, 2);
  if (name == "aten::convolution") return convolution_flops(in);
  // Fused attention (query, key, ...): two products of the size of the scores. Attention that is not fused calls bmm.
  if (name.starts_with("aten::_scaled_dot_product_") && name.find("math") == name.npos)
    return 4 * numel(in.at(0)) * static_cast<double>(in.at(1).toTensor().size(-2));
  return 0;
}

namespace {

/// The innermost counter of this thread. LibTorch's callbacks are plain functions, which have no other way to it.
FlopCounter*& innermost() {
  static thread_local FlopCounter* counter = nullptr;
  return counter;
}

}  // namespace

FlopCounter::FlopCounter() : outer_(std::exchange(innermost(), this)) {
  if (outer_ != nullptr) return;  // its callback finds this counter
  auto count = at::RecordFunctionCallback([](const at::RecordFunction& function) {
    innermost()->flops_ += flops_of(function.name(), function.inputs());
    return std::unique_ptr<at::ObserverContext>();
  });
  handle_ = at::addThreadLocalCallback(count.needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  innermost() = outer_;
  if (outer_ != nullptr)
    outer_->flops_ += flops_;
  else
    at::removeCallback(handle_);
}

}  // namespace trireme::nn
