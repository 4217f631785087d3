// Cross-entropy of the scores that a head makes of x, x W^T + b, without all the scores: those of some rows become
// their gradients in the same memory, and these at once the gradients of x, W and b, so that the next rows can take the
// memory. There are three products, as of scores that are kept. Hsu et al., "Liger Kernel", 2024; classes that are
// sharded over ranks as in chunked_cross_entropy.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/comm/group.h"
#include "core/nn/context.h"
#include "core/nn/layers/criterion.h"

namespace trireme::nn {

/// What makes the scores of a model's head.
struct Head {
  at::Tensor x;             ///< [..., features]
  at::Tensor weight, bias;  ///< [classes of this rank, features], [classes of this rank]; bias may be undefined
  std::int64_t classes = 0;
  /// The ranks over which shard::split divides the classes. All have the same x, and its gradient is summed over them.
  /// Null: this rank has all classes.
  const comm::Group* group = nullptr;
  /// What the gradient of the loss will be, about, 0-dim: the gradients of x, W and b are rounded to their dtype with
  /// it, and corrected by the true one. Undefined: 1.
  at::Tensor loss_gradient{};
};

/// The sum that cross_entropy() and chunked_cross_entropy() give for the head's scores. `rows`: those whose scores are
/// there at once; unset: by the device. Backward passes can take each gradient once, and compute nothing but products
/// with a number; under autocast the products are in its dtype. Collective over the group: all-reduces of N and of 3 N
/// elements in the forward pass, N positions, in a part for each `rows` of them; of numel(x) in the backward pass.
at::Tensor linear_cross_entropy(const Head& head, const at::Tensor& labels, const CrossEntropyOptions& options,
                                std::optional<std::int64_t> rows = {});

/// The loss of the head's scores by context.loss_of_head, 0-dim, where that needs less memory than the scores; else
/// undefined, and the head returns its scores. The same on every rank of the group.
at::Tensor loss_in_place_of_scores(Head head, const Context& context);

/// While it exists, heads compute the loss of so many rows at once, whether that saves memory or not: for tests of
/// small models. Of the process, one at a time.
class HeadRowsScope {
 public:
  explicit HeadRowsScope(std::int64_t rows);
  ~HeadRowsScope();
  HeadRowsScope(const HeadRowsScope&) = delete;
  HeadRowsScope& operator=(const HeadRowsScope&) = delete;
  /// The losses that heads have computed since it was made.
  [[nodiscard]] static std::int64_t losses();
};

}  // namespace trireme::nn
