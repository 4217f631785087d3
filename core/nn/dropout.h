// Dropout whose mask is drawn by name and sample (core/nn/dropout_mask.h), and attention with it.
#pragma once

#include "core/nn/dropout_mask.h"
#include "core/nn/layer.h"

namespace trireme::nn {

/// In training with p > 0: x * mask / (1 - p); else x itself. The first dim of x counts the samples of
/// Context::sample_ids. @pre 0 <= p < 1
class Dropout : public Unary {
 public:
  explicit Dropout(double p);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;
  /// The same for a slice of a sample's tensor.
  at::Tensor forward(const at::Tensor& x, const Context& context, const Elements& elements) const;
  [[nodiscard]] bool active(const Context& context) const { return context.training && p_ > 0; }
  [[nodiscard]] double p() const { return p_; }

 private:
  double p_;
};

/// softmax(q k^T / sqrt(d)) v over q, k, v [B, heads, N, d]. LibTorch's fused kernels while `dropout` is not active;
/// they cannot take our mask, so with it the scores are formed and the mask falls on the probabilities.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Dropout& dropout,
                     const Context& context);

}  // namespace trireme::nn
