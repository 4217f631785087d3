#include "core/nn/criterion.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/nn/index_checks.h"

namespace trireme::nn {

void check_logits(const at::Tensor& logits, const at::Tensor& labels) {
  TRIREME_REQUIRE(logits.dim() >= 1 && logits.sizes().slice(0, logits.sizes().size() - 1) == labels.sizes(),
                  "cross_entropy() takes logits [..., classes] and labels [...], not [{}] and [{}]",
                  fmt::join(logits.sizes(), ", "), fmt::join(labels.sizes(), ", "));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  check_logits(logits, labels);
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // LibTorch's sum over no rows is an empty sum too, but its label smoothing divides by the number of rows.
  if (labels.numel() == 0) return logits.to(dtype).sum();
  const auto classes = logits.size(-1);
  if (labels.is_cpu()) check_labels(labels, classes);  // LibTorch's own error does not mention the data
  return at::cross_entropy_loss(logits.to(dtype).reshape({-1, classes}), labels.reshape({-1}), {}, at::Reduction::Sum,
                                kNoLabel, label_smoothing);
}

}  // namespace trireme::nn
