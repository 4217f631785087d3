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

  Criterion() = default;
  template <class F>
  Criterion(F function) requires(!std::same_as<F, Criterion> && std::constructible_from<Function, F>)
      : function_(std::move(function)) {}
  /// `overwriting`: the same for outputs that nobody else reads, which the backward pass may overwrite.
  Criterion(Function function, Function overwriting)
      : function_(std::move(function)), overwriting_(std::move(overwriting)) {}

  at::Tensor operator()(const nn::Tensors& outputs, const data::Batch& batch) const {
    return function_(outputs, batch);
  }
  /// For outputs that nobody else reads: without another function, this one.
  [[nodiscard]] Criterion overwriting() const { return overwriting_ ? Criterion(overwriting_) : *this; }

 private:
  Function function_, overwriting_;
};

/// A microbatch's part of the mean over the global batch. `global_weight`: Batch::global_weight.
inline at::Tensor part_of_mean(const at::Tensor& loss_sum, const at::Tensor& global_weight) {
  const auto dtype = at::promote_types(loss_sum.scalar_type(), at::kFloat);  // 16 bits cannot hold a large weight
  return loss_sum.to(dtype) / global_weight.to(dtype);
}

}  // namespace trireme
