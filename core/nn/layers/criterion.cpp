#include "core/nn/layers/criterion.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/log_softmax.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/nn/layers/chunked_cross_entropy.h"
#include "core/nn/layers/index_checks.h"

namespace trireme::nn {
namespace {

/// Above so many logits chunked_cross_entropy() computes the loss; below, LibTorch does, in fewer steps.
constexpr std::int64_t kManyLogits = 1 << 20;

/// Checks the shapes. @throws UsageError
void check_shapes(const at::Tensor& logits, const at::Tensor& labels, std::int64_t classes,
                  const CrossEntropyOptions& options) {
  const auto mixed = options.shares.defined() ? 1U : 0U;
  TRIREME_REQUIRE(
      logits.dim() >= 1 && labels.sizes().size() >= mixed &&
          logits.sizes().slice(0, logits.sizes().size() - 1) == labels.sizes().slice(0, labels.sizes().size() - mixed),
      "cross_entropy() takes logits [..., classes] and labels [...{}], not [{}] and [{}]", mixed == 1 ? ", K" : "",
      fmt::join(logits.sizes(), ", "), fmt::join(labels.sizes(), ", "));
  TRIREME_REQUIRE(mixed == 0 || options.shares.sizes() == labels.sizes(),
                  "cross_entropy() takes shares of the labels' shape [{}], not [{}]", fmt::join(labels.sizes(), ", "),
                  fmt::join(options.shares.sizes(), ", "));
  const auto& weights = options.class_weights;
  TRIREME_REQUIRE(!weights.defined() || (weights.dim() == 1 && weights.size(0) == classes),
                  "cross_entropy() takes one class weight for each of {} classes, not [{}]", classes,
                  fmt::join(weights.sizes(), ", "));
}

/// The weight of each label's class. @pre the labels are classes
at::Tensor weights_of(const at::Tensor& labels, const at::Tensor& class_weights) {
  return class_weights.index_select(0, labels.flatten()).view_as(labels);
}

}  // namespace

at::Tensor label_factors(const at::Tensor& labels, const CrossEntropyOptions& options, at::ScalarType dtype) {
  const auto counts = labels.ne(kNoLabel);
  auto factors = counts.to(dtype);
  if (options.shares.defined()) factors = factors * options.shares.to(dtype);
  if (!options.class_weights.defined()) return factors;
  const auto weights = options.class_weights.to(factors.options(), /*non_blocking=*/true);
  return factors * weights_of(labels * counts, weights);
}

TargetRows target_rows(const at::Tensor& logits, const at::Tensor& labels, std::int64_t classes,
                       const CrossEntropyOptions& options, at::ScalarType dtype) {
  check_shapes(logits, labels, classes, options);
  check_labels(labels, classes);
  TargetRows rows;
  rows.labels = labels.reshape({-1, options.shares.defined() ? labels.size(-1) : 1});
  rows.factors = label_factors(labels, {.shares = options.shares}, dtype).reshape(rows.labels.sizes());
  rows.labels = rows.labels * rows.labels.ne(kNoLabel);
  rows.shares = rows.factors.sum(1);
  if (!options.class_weights.defined()) return rows;
  rows.class_weights = options.class_weights.to(rows.factors.options(), /*non_blocking=*/true);
  rows.factors = rows.factors * weights_of(rows.labels, rows.class_weights);
  return rows;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options) {
  const auto classes = logits.dim() > 0 ? logits.size(-1) : 0;
  check_shapes(logits, labels, classes, options);
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // LibTorch's sum over no rows is an empty sum too, but its label smoothing divides by the number of rows.
  if (labels.numel() == 0) return logits.to(dtype).sum();
  if (logits.numel() >= kManyLogits) return chunked_cross_entropy(logits, labels, options, classes);
  const auto& [smoothing, weights, shares, overwrite] = options;
  const auto wide = logits.to(dtype).reshape({-1, classes});
  if (!shares.defined()) {
    if (labels.is_cpu()) check_labels(labels, classes);  // LibTorch's own error does not mention the data
    const auto of_classes = weights.defined() ? weights.to(wide.options(), /*non_blocking=*/true) : at::Tensor();
    return at::cross_entropy_loss(wide, labels.reshape({-1}), of_classes, at::Reduction::Sum, kNoLabel, smoothing);
  }
  const auto rows = target_rows(logits, labels, classes, options, dtype);
  const auto log_odds = at::log_softmax(wide, 1);
  const auto hard = (log_odds.gather(1, rows.labels) * rows.factors).sum();
  if (smoothing == 0) return -hard;
  const auto all = weights.defined() ? log_odds.matmul(rows.class_weights) : log_odds.sum(1);
  return -((1 - smoothing) * hard + smoothing / static_cast<double>(classes) * (all * rows.shares).sum());
}

}  // namespace trireme::nn
