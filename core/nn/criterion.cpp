#include "core/nn/criterion.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/index_checks.h"

namespace trireme::nn {

Loss cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  TRIREME_REQUIRE(logits.dim() == 2 && labels.dim() == 1 && logits.size(0) == labels.size(0),
                  "cross_entropy() takes logits [samples, classes] and labels [samples], not [{}] and [{}]",
                  fmt::join(logits.sizes(), ", "), fmt::join(labels.sizes(), ", "));
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto weight = static_cast<double>(labels.size(0));
  // LibTorch's sum over no rows is an empty sum too, but its label smoothing divides by the number of rows.
  if (labels.size(0) == 0) return {logits.to(dtype).sum(), weight};
  if (labels.is_cpu()) check_labels(labels, logits.size(1));  // LibTorch's own error does not mention the data
  return {at::cross_entropy_loss(logits.to(dtype), labels, {}, at::Reduction::Sum, kNoLabel, label_smoothing), weight};
}

void CrossEntropy::set_parallel_loss(Compute replacement, std::weak_ptr<const void> model) {
  if (replaced())
    throw ConfigError(
        "ModelSource::loss is still in use by another boosted model; give each model its own CrossEntropy");
  replacement_ = std::move(replacement);
  model_ = std::move(model);
}

}  // namespace trireme::nn
