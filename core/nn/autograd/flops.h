// Counts floating-point operations: two for each multiplication in LibTorch's matrix products, convolutions and fused
// attentions; none for other operators.
#pragma once

#include <ATen/record_function.h>

namespace trireme::nn {

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
