// Linear and LayerNorm: y = x W^T + b over the last dim, and the normalisation of it.
#pragma once

#include "core/nn/layer.h"

namespace trireme::nn {

/// weight [out, in], bias [out]; x [..., in] -> [..., out].
class Linear : public Unary {
 public:
  struct Options {
    std::int64_t in, out;
    bool bias = true;
    double init_std = 0.02;  ///< weight: normal(0, init_std); bias: zeros
  };
  explicit Linear(const Options& options);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

  at::Tensor weight, bias;  ///< bias is undefined without one
};

/// weight [size], bias [size], from ones and zeros. Mean and variance over the last dim.
class LayerNorm : public Unary {
 public:
  LayerNorm(std::int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

  at::Tensor weight, bias;

 private:
  std::int64_t size_;
  double eps_;
};

}  // namespace trireme::nn
