// Criteria return a sum and its weight, never a ready mean (contract C3): only the engine knows the weight of the whole
// global batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme::nn {

struct Loss {
  at::Tensor sum;     ///< 0-dim, connected to the graph even for a batch of no samples
  double weight = 0;  ///< what the sum is divided by: samples, or valid tokens
};

/// logits [B, classes], labels int64 [B]; summed over the samples in float32, or in float64 for float64 logits.
/// Smoothing spreads that part of each target evenly over all classes.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing = 0);

/// Cross-entropy as an object: for a caller whose criterion it is, and who says so (ModelSource::loss). A plugin may
/// then compute it of logits whose classes are cut over ranks, and need not gather them.
class CrossEntropy {
 public:
  explicit CrossEntropy(double label_smoothing = 0) : smoothing_(label_smoothing) {}
  Loss operator()(const at::Tensor& logits, const at::Tensor& labels) const {
    ++calls_;
    return replaced() ? instead_(logits, labels, smoothing_) : cross_entropy(logits, labels, smoothing_);
  }
  using Compute = std::function<Loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing)>;
  /// As long as `model` lives. @throws ConfigError when another one lives that has its own way.
  void compute_by(Compute instead, std::weak_ptr<const void> model);
  [[nodiscard]] double label_smoothing() const { return smoothing_; }
  [[nodiscard]] bool replaced() const { return instead_ && !model_.expired(); }
  /// How often it has been called.
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

 private:
  double smoothing_;
  Compute instead_;
  std::weak_ptr<const void> model_;
  mutable std::uint64_t calls_ = 0;
};

}  // namespace trireme::nn
