// Counts floating-point operations: two for each multiplication in LibTorch's matrix products, convolutions and fused
// attentions; none for other operators.
#pragma once

#include <ATen/record_function.h>

#include <string_view>

namespace trireme::nn {

/// Two FLOPs for each multiplication of an operator that multiplies matrices, by its name ("aten::mm") and inputs; 0
/// for other operators.
double flops_of(std::string_view name, c10::ArrayRef<const c10::IValue> inputs);

/// Adds up the FLOPs of this thread's operators while it lives. What an inner counter counts, the outer one does, too.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  [[nodiscard]] double flops() const { return flops_; }

 private:
  double flops_ = 0;
  FlopCounter* outer_;
  at::CallbackHandle handle_ = 0;  ///< of the outermost counter
};

}  // namespace trireme::nn
