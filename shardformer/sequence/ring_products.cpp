#include "shardformer/sequence/ring_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "core/nn/autograd/saved_state.h"
#include "shardformer/sequence/ring.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// State that the backward pass needs besides tensors.
struct SavedProduct {
  comm::Group group;
  std::int64_t tokens;
  bool overlap;
  std::vector<std::int64_t> reads{};  ///< of each branch: the number of leading tokens that it reads
  std::vector<bool> has_bias{};
  at::Tensor gradient{};  ///< the full gradient of a row-parallel output, saved between a pass for the input and one
                          ///< for the weight
};

at::Tensor of(const at::Tensor& x, const shard::Range& tokens) { return x.narrow(1, tokens.begin, tokens.size()); }

/// The tokens of the range that are among the first `reads`.
shard::Range among(const shard::Range& tokens, std::int64_t reads) {
  return {std::min(tokens.begin, reads), std::min(tokens.end, reads)};
}

/// dy^T x, summed over samples and tokens.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  return at::matmul(dy.flatten(0, -2).t(), x.flatten(0, -2));
}

struct RingColumn : torch::autograd::Function<RingColumn> {
  // TensorList is the only list type whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const std::shared_ptr<SavedProduct>& state, const at::Tensor& x,
                               at::TensorList weights) {
    nn::save_state(ctx, state);
    variable_list saved{x}, out, biases;
    for (std::size_t b = 0, next = 0; b < state->reads.size(); ++b) {
      saved.push_back(weights[next++]);
      biases.push_back(state->has_bias[b] ? weights[next++] : at::Tensor());
      out.push_back(at::empty({x.size(0), state->reads[b], saved.back().size(0)}, x.options()));
    }
    gather_by_ring(
        x, state->tokens, state->group,
        [&](const shard::Range& tokens, const at::Tensor& slice) {
          for (std::size_t b = 0; b < out.size(); ++b) {
            const auto read = among(tokens, state->reads[b]);
            of(out[b], read).copy_(at::linear(slice.narrow(1, 0, read.size()), saved[b + 1], biases[b]));
          }
        },
        state->overlap);
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto state = nn::saved_state<SavedProduct>(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved.front();
    variable_list result(2);  // for `state`, which has none, and for x
    if (ctx->needs_input_grad(0))
      result[1] = reduce_by_ring(
          state->tokens, state->group,
          [&](const shard::Range& tokens) {
            auto sum = at::zeros({x.size(0), tokens.size(), x.size(2)}, x.options());
            for (std::size_t b = 0; b < grads.size(); ++b) {
              const auto read = among(tokens, state->reads[b]);
              sum.narrow(1, 0, read.size()).add_(at::matmul(of(grads[b], read), saved[b + 1]));
            }
            return sum;
          },
          state->overlap);
    variable_list weights(grads.size());
    bool any = false;
    for (std::size_t b = 0, edge = 1; b < grads.size(); ++b) {  // edge: input index of the node, x is 0
      if (ctx->needs_input_grad(edge++)) weights[b] = at::zeros_like(saved[b + 1]);
      any = any || weights[b].defined();
      result.push_back(weights[b]);
      if (!state->has_bias[b]) continue;
      result.push_back(ctx->needs_input_grad(edge++) ? grads[b].flatten(0, -2).sum(0) : at::Tensor());
    }
    if (any)
      gather_by_ring(
          x, state->tokens, state->group,
          [&](const shard::Range& tokens, const at::Tensor& slice) {
            for (std::size_t b = 0; b < grads.size(); ++b) {
              const auto read = among(tokens, state->reads[b]);
              if (weights[b].defined())
                weights[b].add_(weight_gradient(of(grads[b], read), slice.narrow(1, 0, read.size())));
            }
          },
          state->overlap);
    return result;
  }
};

struct RingRow : torch::autograd::Function<RingRow> {
  static at::Tensor forward(AutogradContext* ctx, const std::shared_ptr<SavedProduct>& state, const at::Tensor& x,
                            const at::Tensor& weight) {
    nn::save_state(ctx, state);
    ctx->save_for_backward({x, weight});
    return reduce_by_ring(
        state->tokens, state->group, [&](const shard::Range& tokens) { return at::linear(of(x, tokens), weight); },
        state->overlap);
  }

  // The gradient of the output is passed around once. If a first pass asks only for the gradient of the input, the
  // gathered gradient is saved for a second pass that asks for that of the weight.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto state = nn::saved_state<SavedProduct>(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(1) && state->gradient.defined())
      return {at::Tensor(), dx, weight_gradient(std::exchange(state->gradient, {}), x)};
    if (ctx->needs_input_grad(0)) dx = at::empty_like(x);
    if (ctx->needs_input_grad(1))
      dw = at::zeros_like(weight);
    else if (weight.requires_grad())
      state->gradient = at::empty({x.size(0), state->tokens, weight.size(0)}, grads[0].options());
    gather_by_ring(
        grads[0], state->tokens, state->group,
        [&](const shard::Range& tokens, const at::Tensor& slice) {
          if (dx.defined()) of(dx, tokens).copy_(at::matmul(slice, weight));
          if (dw.defined()) dw.add_(weight_gradient(slice, of(x, tokens)));
          if (state->gradient.defined()) of(state->gradient, tokens).copy_(slice);
        },
        state->overlap);
    return {at::Tensor(), dx, dw};
  }
};

}  // namespace

std::vector<at::Tensor> column_products_by_ring(const at::Tensor& x, std::int64_t tokens,
                                                const std::vector<Branch>& branches, const comm::Group& group,
                                                bool overlap) {
  const auto state = std::make_shared<SavedProduct>(SavedProduct{group, tokens, overlap});
  variable_list weights;
  for (const auto& branch : branches) {
    state->reads.push_back(branch.tokens == kAllTokens ? tokens : branch.tokens);
    state->has_bias.push_back(branch.bias.defined());
    weights.push_back(branch.weight);
    if (branch.bias.defined()) weights.push_back(branch.bias);
  }
  return RingColumn::apply(state, x, at::TensorList(weights));
}

at::Tensor row_product_by_ring(const at::Tensor& x, const at::Tensor& weight, const comm::Group& group, bool overlap) {
  return RingRow::apply(std::make_shared<SavedProduct>(SavedProduct{group, x.size(1), overlap}), x, weight);
}

}  // namespace trireme::shardformer
