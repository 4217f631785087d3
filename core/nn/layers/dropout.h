// Dropout and drop path, whose masks depend only on seed, step, layer name and sample number
// (core/nn/layers/dropout_mask.h).
#pragma once

#include "core/nn/layer.h"
#include "core/nn/layers/dropout_mask.h"

namespace trireme::nn {

/// In training with p > 0 the output is x * mask / (1 - p), otherwise x itself. Dim 0 of x is the samples of
/// Context::sample_ids. @pre 0 <= p < 1
class Dropout : public Unary {
 public:
  explicit Dropout(double p);
  /// Which elements of the full tensor are in x: all. A rank that holds a part of each sample's tensor replaces it.
  Replaceable<Elements(const at::Tensor& x, const Context& context)> mask_slice;
  void set_first_token(std::function<std::int64_t(const Context& context)> first) override;
  /// The elements of an x that is a slice of dim 1 of the full tensor and begins at its index `begin`.
  static Elements slice_from(const at::Tensor& x, std::int64_t begin);
  [[nodiscard]] bool active(const Context& context) const { return context.training && p_ > 0; }
  [[nodiscard]] double p() const { return p_; }
  /// residual + forward(x), in one pass if fused.
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x, const Context& context);
  void fuse(bool on) { fused_ = on; }

  /// Bool [B, elements.count]: true for elements that are kept. For callers that index the elements themselves.
  [[nodiscard]] at::Tensor mask(const Context& context, const Elements& elements, c10::Device device) const;
  /// Bool, of x's shape: true for elements that are kept. Undefined when all are kept.
  [[nodiscard]] at::Tensor mask_of(const at::Tensor& x, const Context& context) const;
  /// x * mask * scale(), differentiable; the mask has x's shape.
  [[nodiscard]] at::Tensor apply_mask(const at::Tensor& x, const at::Tensor& mask) const;
  /// @throws UsageError when the context does not have the ids of `samples` samples
  void check_samples(const Context& context, std::int64_t samples) const;
  /// The factor by which kept elements are multiplied.
  [[nodiscard]] double scale() const { return 1 / (1 - p_); }
  /// Whether forward(x) is x * mask_of(x) * scale(): false when a policy has replaced it.
  [[nodiscard]] bool is_mask() const { return !forward.replaced(); }

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  double p_;
  bool fused_ = false;
};

/// Drop path (stochastic depth): in training, x of a whole sample is 0 with probability p, and x / (1 - p) otherwise.
/// It stands at the end of a residual branch. Ranks that hold parts of a sample draw the same. Huang et al., "Deep
/// networks with stochastic depth", ECCV 2016. @pre 0 <= p < 1
class DropPath : public Unary {
 public:
  explicit DropPath(double p);
  [[nodiscard]] double p() const { return p_; }

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  double p_;
};

}  // namespace trireme::nn
