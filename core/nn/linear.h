// Linear and LayerNorm: y = x W^T + b over the last dim, and the normalisation of it. Each may say what stands next to
// it in a block (GELU after the one, the residual sum before the other), so that both can be one step
// (core/nn/fused.h).
#pragma once

#include "core/nn/dropout.h"

namespace trireme::nn {

/// weight [out, in], bias [out]; x [..., in] -> [..., out]: x W^T + b, or the GELU of that.
class Linear : public Unary {
 public:
  struct Options {
    std::int64_t in, out;
    bool bias = true;
    double init_std = 0.02;  ///< weight: normal(0, init_std); bias: zeros
    /// So many features side by side are one thing that no cut may part, such as a head.
    std::int64_t in_unit = 1, out_unit = 1;
    bool gelu = false;  ///< the exact one, of the sum with the bias
  };
  explicit Linear(const Options& options);
  [[nodiscard]] const Options& options() const { return options_; }

  /// For a policy that computes x W^T its own way. The bias that the product is to leave to finish(), with `x`;
  /// undefined: none, it adds its own.
  [[nodiscard]] at::Tensor late_bias(const at::Tensor& x) const;
  /// What forward() makes of the product, which it may overwrite. `late`: the bias that is still to be added, or
  /// undefined.
  [[nodiscard]] at::Tensor finish(at::Tensor product, const at::Tensor& late) const;
  /// Bias and GELU as one step.
  void fuse(bool on) { fused_ = on; }

  at::Tensor weight, bias;  ///< bias is undefined without one

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  Options options_;
  bool fused_ = false;
};

/// weight [size], bias [size], from ones and zeros. Mean and variance over the last dim.
class LayerNorm : public Unary {
 public:
  LayerNorm(std::int64_t size, double eps);

  struct OfSum {
    at::Tensor sum, norm;
  };
  /// sum = residual + dropout(x), and its norm. As one step, if fused.
  OfSum of_sum(const at::Tensor& residual, const at::Tensor& x, Dropout& dropout, const Context& context);
  void fuse(bool on) { fused_ = on; }

  at::Tensor weight, bias;

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  std::int64_t size_;
  double eps_;
  bool fused_ = false;
};

}  // namespace trireme::nn
