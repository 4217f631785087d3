// The values that a forward pass depends on besides its inputs and the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/nn/named_tensors.h"

namespace trireme::nn {

using Tensors = std::vector<at::Tensor>;

struct Head;
/// The loss of the scores that a head makes, 0-dim, without the scores (core/nn/layers/linear_cross_entropy.h).
using LossOfHead = std::function<at::Tensor(const Head& head)>;

struct Context {
  bool training = false;
  std::uint64_t seed = 0;   ///< the run's seed: dropout masks are keyed by (seed, step, layer, sample, element)
  std::int64_t step = 0;    ///< optimizer step, from 0
  at::Tensor sample_ids{};  ///< int64 [B]: each sample's global number, on the CPU or where masks are drawn
  /// A sample's full token count, before sequence parallelism slices it; 0 when the model has no tokens.
  std::int64_t tokens = 0;
  /// Inputs that every block can read, such as a padding mask: those that Model::side_input_names() lists and the data
  /// have, [B, ...] each, with all tokens of the batch.
  NamedTensors side{};
  /// What the engine divides the loss by, and what it multiplies it with, both 0-dim: Batch::global_weight, and the
  /// loss scale of fp16 (undefined: none). For add_to_loss().
  at::Tensor loss_weight{}, loss_scale{};
  /// Set for a last block with returns_scores(), in a training step that needs nothing of the scores but their loss.
  LossOfHead loss_of_head{};

  /// Returns x, and adds `term` to the loss that is trained: a router's load-balancing loss, in any block of any
  /// pipeline stage. Like a criterion, the term is a sum over the samples (or tokens) that x has here, 0-dim, and is
  /// divided by the same weight: the gradient is that of (the criterion's sum + the terms) / weight. Each rank adds the
  /// term of its own samples and, under sequence parallelism, of its own tokens; tensor-parallel ranks that have the
  /// same x all add the same term, which then counts once. With a sequence axis of its own (all_to_all, ring_attn), add
  /// terms only between the layers that scatter and gather the tokens: elsewhere each rank of the axis would count. The
  /// term has no effect in an evaluation, nor if the loss
  /// does not depend on the returned tensor, and no reported loss contains it. In fp16, compute it in float32.
  /// @throws UsageError for a term that is not one floating-point number, for an x of integers, which gets no gradient,
  /// and in training without `loss_weight`
  [[nodiscard]] at::Tensor add_to_loss(const at::Tensor& x, const at::Tensor& term) const;

  /// The same context for layers whose input has another number of tokens.
  [[nodiscard]] Context with_tokens(std::int64_t count) const {
    auto context = *this;
    context.tokens = count;
    return context;
  }
};

}  // namespace trireme::nn
