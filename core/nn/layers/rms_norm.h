// RmsNorm: x / sqrt(mean(x^2) + eps) * weight over the last dim. Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019.
#pragma once

#include <array>

#include "core/nn/layer.h"

namespace trireme::nn {

/// weight [size] starts as ones. The mean is computed in float32 at least.
class RmsNorm : public Unary {
 public:
  RmsNorm(std::int64_t size, double eps);
  /// {residual + x, the norm of that}, in one step if both have one shape.
  std::array<at::Tensor, 2> of_sum(const at::Tensor& residual, const at::Tensor& x, const Context& context);

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  /// @throws UsageError when x has another number of features
  void check(const at::Tensor& x) const;

  double eps_;
  at::Tensor weight_;
};

}  // namespace trireme::nn
