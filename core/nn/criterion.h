// Losses as sums. A mean is taken over the global batch, and only the engine knows the weight of that (contract C3).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace trireme::nn {

/// The sum of the cross-entropies of logits [..., classes] to the classes `labels`, int64 [...]: of images [B], of
/// tokens [B, T]. Labels that are kNoLabel (-100) do not count. 0-dim, in float32, or in float64 for float64 logits,
/// and connected to the autograd graph even when there are no labels. Label smoothing spreads the fraction
/// `label_smoothing` of each target evenly over all classes.
/// @throws UsageError for other shapes; DataError for a label that is no class (on a CPU)
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing = 0);

/// Checks the shapes. @throws UsageError
void check_logits(const at::Tensor& logits, const at::Tensor& labels);

/// Computes what cross_entropy() does. A plugin whose ranks hold parts of the logits has one of its own.
using CrossEntropy =
    std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing)>;

}  // namespace trireme::nn
