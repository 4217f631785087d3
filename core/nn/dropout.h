// Dropout whose mask is drawn by name and sample (core/nn/dropout_mask.h).
#pragma once

#include <functional>
#include <utility>

#include "core/nn/dropout_mask.h"
#include "core/nn/layer.h"

namespace trireme::nn {

/// In training with p > 0: x * mask / (1 - p); else x itself. The first dim of x counts the samples of
/// Context::sample_ids. @pre 0 <= p < 1
class Dropout : public Unary {
 public:
  explicit Dropout(double p);
  /// This rank has a part of a sample's tensor: which, `held` tells of x.
  using Held = std::function<Elements(const at::Tensor& x, const Context& context)>;
  void hold_by(Held held) { held_ = std::move(held); }
  /// ... a slice: the first index of its dim 1 is number begin(context) of the whole's.
  using Begin = std::function<std::int64_t(const Context& context)>;
  void begin_by(Begin begin) {
    hold_by(
        [begin = std::move(begin)](const at::Tensor& x, const Context& context) { return from(x, begin(context)); });
  }
  void begin_at(std::int64_t index) {
    begin_by([index](const Context&) { return index; });
  }
  [[nodiscard]] bool active(const Context& context) const { return context.training && p_ > 0; }
  [[nodiscard]] double p() const { return p_; }
  /// residual + forward(x). In one pass, if fused.
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x, const Context& context);
  void fuse(bool on) { fused_ = on; }

  /// Bool [B, elements.count]: which of a sample's elements are kept. For those who apply it themselves.
  [[nodiscard]] at::Tensor mask(const Context& context, const Elements& elements, c10::Device device) const;
  /// Bool, of x's shape: which of its elements are kept. Undefined: all, as they are.
  [[nodiscard]] at::Tensor mask_of(const at::Tensor& x, const Context& context) const;
  /// What kept elements are multiplied by.
  [[nodiscard]] double scale() const { return 1 / (1 - p_); }
  /// Whether forward(x) is x * mask_of(x) * scale(), and no policy's.
  [[nodiscard]] bool is_mask() const { return !replaced(); }

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  static Elements from(const at::Tensor& x, std::int64_t begin);

  double p_;
  Held held_;
  bool fused_ = false;
};

}  // namespace trireme::nn
