// Criteria return a sum and its weight, never a ready mean (contract C3): only the engine knows the weight of the whole
// global batch.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

struct Loss {
  at::Tensor sum;     ///< 0-dim, connected to the graph even for a batch of no samples
  double weight = 0;  ///< what the sum is divided by: samples, or valid tokens
};

/// logits [B, classes], labels int64 [B]; summed over the samples in float32, or in float64 for float64 logits.
/// Smoothing spreads that part of each target evenly over all classes.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing = 0);

}  // namespace trireme::nn
