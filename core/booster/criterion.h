// Criterion: computes a loss from outputs and batch. It returns the SUM over the batch's samples (or tokens), never a
// mean: only the engine knows the weight of the global batch (contract C3).
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/promote_types.h>

#include <concepts>
#include <functional>
#include <utility>

#include "core/data/batch.h"
#include "core/nn/context.h"
#include "core/nn/layers/criterion.h"

namespace trireme {

/// A function, such as a lambda, converts to it.
class Criterion {
 public:
  /// Returns a 0-dim tensor, connected to the autograd graph even for an empty batch.
  using Function = std::function<at::Tensor(const nn::Tensors& outputs, const data::Batch& batch)>;

  /// What a criterion can do if nobody else reads the outputs.
  struct Released {
    Function overwriting{};             ///< the same as the function; the backward pass may overwrite the outputs
    data::Batch::LossOfHead of_head{};  ///< null: it needs the outputs
  };

  Criterion() = default;
  template <class F>
  Criterion(F function) requires(!std::same_as<F, Criterion> && std::constructible_from<Function, F>)
      : function_(std::move(function)) {}
  Criterion(Function function, Released released) : function_(std::move(function)), released_(std::move(released)) {}

  /// If the model's head has computed the loss (data::Batch::loss_of_head), returns that.
  at::Tensor operator()(const nn::Tensors& outputs, const data::Batch& batch) const {
    if (batch.loss_of_head && outputs.size() == 1 && outputs.front().dim() == 0) return outputs.front();
    return function_(outputs, batch);
  }
  /// For outputs that nobody else reads: without another function, this one.
  [[nodiscard]] Criterion overwriting() const {
    return released_.overwriting ? Criterion(released_.overwriting) : *this;
  }
  [[nodiscard]] const data::Batch::LossOfHead& of_head() const { return released_.of_head; }

 private:
  Function function_;
  Released released_;
};

/// A microbatch's part of the mean over the global batch. `global_weight`: Batch::global_weight.
inline at::Tensor part_of_mean(const at::Tensor& loss_sum, const at::Tensor& global_weight) {
  const auto dtype = at::promote_types(loss_sum.scalar_type(), at::kFloat);  // 16 bits cannot hold a large weight
  return loss_sum.to(dtype) / global_weight.to(dtype);
}

}  // namespace trireme
