// Dropout whose mask is drawn by name and sample (core/nn/dropout_mask.h).
#pragma once

#include "core/nn/dropout_mask.h"
#include "core/nn/layer.h"

namespace trireme::nn {

/// In training with p > 0: x * mask / (1 - p); else x itself. The first dim of x counts the samples of
/// Context::sample_ids. @pre 0 <= p < 1
class Dropout : public Unary {
 public:
  explicit Dropout(double p);
  /// This rank has a slice of a sample's tensor: the first index of its dim 1 is number `index` of the whole's.
  void begin_at(std::int64_t index) { begin_ = index; }
  [[nodiscard]] bool active(const Context& context) const { return context.training && p_ > 0; }
  [[nodiscard]] double p() const { return p_; }
  /// As forward(), for a slice whose first index of dim 1 is number `begin` of the whole's.
  at::Tensor drop(const at::Tensor& x, const Context& context, std::int64_t begin) const;
  /// As forward(), for any part of each sample. @pre elements.count is the size of x[0]
  at::Tensor drop(const at::Tensor& x, const Context& context, const Elements& elements) const;
  /// Bool [B, elements.count]: which of a sample's elements are kept. For those who apply it themselves.
  [[nodiscard]] at::Tensor mask(const Context& context, const Elements& elements, c10::Device device) const;

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  double p_;
  std::int64_t begin_ = 0;
};

}  // namespace trireme::nn
