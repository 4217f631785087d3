// Dropout whose mask depends only on seed, step, layer name and sample number (core/nn/dropout_mask.h).
#pragma once

#include <functional>
#include <utility>

#include "core/nn/dropout_mask.h"
#include "core/nn/layer.h"

namespace trireme::nn {

/// In training with p > 0 the output is x * mask / (1 - p), otherwise x itself. Dim 0 of x is the samples of
/// Context::sample_ids. @pre 0 <= p < 1
class Dropout : public Unary {
 public:
  explicit Dropout(double p);
  /// For a rank that holds a part of each sample's tensor: returns which elements of the full tensor are in x.
  using MaskSlice = std::function<Elements(const at::Tensor& x, const Context& context)>;
  void set_mask_slice(MaskSlice slice) { mask_slice_ = std::move(slice); }
  /// The same for a slice of dim 1 that begins at index begin(context) of the full tensor.
  using Begin = std::function<std::int64_t(const Context& context)>;
  void set_slice_begin(Begin begin) {
    set_mask_slice(
        [begin = std::move(begin)](const at::Tensor& x, const Context& context) { return from(x, begin(context)); });
  }
  void set_slice_begin_at(std::int64_t index) {
    set_slice_begin([index](const Context&) { return index; });
  }
  [[nodiscard]] bool active(const Context& context) const { return context.training && p_ > 0; }
  [[nodiscard]] double p() const { return p_; }
  /// residual + forward(x), in one pass if fused.
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x, const Context& context);
  void fuse(bool on) { fused_ = on; }

  /// Bool [B, elements.count]: true for elements that are kept. For callers that apply the mask themselves.
  [[nodiscard]] at::Tensor mask(const Context& context, const Elements& elements, c10::Device device) const;
  /// Bool, of x's shape: true for elements that are kept. Undefined when all are kept.
  [[nodiscard]] at::Tensor mask_of(const at::Tensor& x, const Context& context) const;
  /// The factor by which kept elements are multiplied.
  [[nodiscard]] double scale() const { return 1 / (1 - p_); }
  /// Whether forward(x) is x * mask_of(x) * scale(): false when a policy has replaced it.
  [[nodiscard]] bool is_mask() const { return !replaced(); }

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  static Elements from(const at::Tensor& x, std::int64_t begin);

  double p_;
  MaskSlice mask_slice_;
  bool fused_ = false;
};

}  // namespace trireme::nn
