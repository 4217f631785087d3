// Losses as sums. A mean is taken over the global batch, and only the engine knows the weight of that (contract C3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace trireme::nn {

struct CrossEntropyOptions {
  /// The fraction of each target that is spread evenly over all classes.
  double label_smoothing = 0;
  /// Floating point [classes], by which the terms of a class are multiplied; undefined: all are 1.
  at::Tensor class_weights{};
  /// Floating point [..., K] for labels [..., K]: a position's target is a mixture of K classes, of which the k-th has
  /// this share. Undefined: each position has one label.
  at::Tensor shares{};
  /// Whether the backward pass may write the gradient into the logits' memory, if there are many. Then nothing else may
  /// read them after the forward pass, the layer that made them included.
  bool overwrite = false;
};

/// The sum of the cross-entropies of logits [..., classes] to the classes `labels`, int64 [...]: of images [B], of
/// tokens [B, T]; or [..., K] with shares. Labels that are kNoLabel (-100) do not count. 0-dim, in float32, or in
/// float64 for float64 logits, and connected to the autograd graph even when there are no labels. Equals the sum of
/// torch.nn.functional.cross_entropy, with class weights and label smoothing as there.
/// @throws UsageError for other shapes; DataError for a label that is no class (on a CPU)
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options = {});

/// Computes what cross_entropy() does. A plugin whose ranks hold parts of the logits has one of its own.
using CrossEntropy =
    std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options)>;

/// What each label counts in the loss: its share times the weight of its class, and 0 for kNoLabel. Of the labels'
/// shape, in `dtype`. @pre the labels are classes or kNoLabel
at::Tensor label_factors(const at::Tensor& labels, const CrossEntropyOptions& options, at::ScalarType dtype);

/// What the loss counts, row by row: cross_entropy() and its form for sharded logits compute with the same rows. With
/// w the class weights, e the label smoothing, C the classes and W the sum of w, a row's loss is
///   (1 - e) sum_k factor_k (log Z - x[label_k])  +  (e / C) share (W log Z - sum_c w[c] x[c]).
struct TargetRows {
  at::Tensor labels;         ///< int64 [N, K]; 0 where the label does not count
  at::Tensor factors;        ///< [N, K]: label_factors()
  at::Tensor shares;         ///< [N]: sum of the shares that count
  at::Tensor class_weights;  ///< [C], or undefined: all are 1
};
/// Checks the shapes and the labels. `dtype`: of the results. @throws UsageError, DataError
TargetRows target_rows(const at::Tensor& logits, const at::Tensor& labels, std::int64_t classes,
                       const CrossEntropyOptions& options, at::ScalarType dtype);

}  // namespace trireme::nn
