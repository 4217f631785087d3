// RmsNorm: x / sqrt(mean(x^2) + eps) * weight over the last dim. Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019.
#pragma once

#include "core/nn/layer.h"

namespace trireme::nn {

/// weight [size] starts as ones. The mean is computed in float32 at least.
class RmsNorm : public Unary {
 public:
  RmsNorm(std::int64_t size, double eps);

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  double eps_;
  at::Tensor weight_;
};

}  // namespace trireme::nn
