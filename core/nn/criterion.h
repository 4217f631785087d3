// A criterion returns a sum and its weight, not a mean (contract C3): the mean is over the global batch, and only the
// engine knows the weight of that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme::nn {

struct Loss {
  at::Tensor sum;     ///< 0-dim, connected to the autograd graph even for an empty batch
  double weight = 0;  ///< the divisor of the sum: the number of samples or of valid tokens
};

/// logits [B, classes], labels int64 [B]. The losses of the samples are summed in float32, or in float64 for float64
/// logits. Label smoothing spreads the fraction `label_smoothing` of each target evenly over all classes.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing = 0);

/// Cross-entropy as an object. A caller that passes it as ModelSource::loss allows a plugin to compute it from logits
/// whose classes are sharded over ranks, without a gather.
class CrossEntropy {
 public:
  explicit CrossEntropy(double label_smoothing = 0) : smoothing_(label_smoothing) {}
  Loss operator()(const at::Tensor& logits, const at::Tensor& labels) const {
    ++calls_;
    return replaced() ? replacement_(logits, labels, smoothing_) : cross_entropy(logits, labels, smoothing_);
  }
  using Compute = std::function<Loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing)>;
  /// Replaces the computation while `model` exists. @throws ConfigError when another existing model has replaced it
  void set_parallel_loss(Compute replacement, std::weak_ptr<const void> model);
  [[nodiscard]] double label_smoothing() const { return smoothing_; }
  [[nodiscard]] bool replaced() const { return replacement_ && !model_.expired(); }
  /// The number of calls.
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

 private:
  double smoothing_;
  Compute replacement_;
  std::weak_ptr<const void> model_;
  mutable std::uint64_t calls_ = 0;
};

}  // namespace trireme::nn
