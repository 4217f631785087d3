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
    /// So many features side by side are one thing that no cut may part, such as a head.
    std::int64_t in_unit = 1, out_unit = 1;
  };
  explicit Linear(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }

  at::Tensor weight, bias;  ///< bias is undefined without one

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  Options options_;
};

/// weight [size], bias [size], from ones and zeros. Mean and variance over the last dim.
class LayerNorm : public Unary {
 public:
  LayerNorm(std::int64_t size, double eps);

  at::Tensor weight, bias;

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  std::int64_t size_;
  double eps_;
};

}  // namespace trireme::nn
