#include "shardformer/tensor/column.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/nn/autograd/saved_state.h"
#include "shardformer/sequence/slices.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// State that the backward pass needs besides tensors.
struct SavedColumn {
  comm::Group group;
  std::vector<std::int64_t> tokens{};  ///< of each branch
  std::vector<bool> has_bias{};
  std::int64_t sliced = kAllTokens;  ///< total number of tokens if x is a slice of them
  bool overlap = true;
  [[nodiscard]] bool is_slice() const { return sliced != kAllTokens; }
};

at::Tensor first(const at::Tensor& x, std::int64_t tokens) { return tokens == kAllTokens ? x : x.narrow(1, 0, tokens); }

struct ColumnProducts : torch::autograd::Function<ColumnProducts> {
  // TensorList is the only list type whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const std::shared_ptr<SavedColumn>& state, const at::Tensor& x,
                               at::TensorList weights) {
    ctx->set_materialize_grads(false);
    nn::save_state(ctx, state);
    const auto whole = state->is_slice() ? gather_async(x, state->sliced, state->group).wait() : x;
    variable_list saved{x}, out;
    std::size_t next = 0;
    for (std::size_t b = 0; b < state->tokens.size(); ++b) {
      const auto& weight = weights[next++];
      const auto bias = state->has_bias[b] ? weights[next++] : at::Tensor();
      out.push_back(at::linear(first(whole, state->tokens[b]), weight, bias));
      saved.push_back(weight);
    }
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  // One pass may ask only for the gradient of the input, and another only for those of the weights; each computes and
  // communicates only what it needs.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto state = nn::saved_state<SavedColumn>(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved.front();
    const auto wanted = weights_wanted(ctx, *state);
    Gathering incoming;
    const bool gathers = state->is_slice() && wanted.any;
    if (gathers) incoming = gather_async(x, state->sliced, state->group);
    if (!state->overlap) incoming.work.wait();
    variable_list result(2);  // for `state`, which has none, and for x
    comm::Work sent;
    if (ctx->needs_input_grad(0)) {
      result[1] = input_gradient(*state, saved, grads);
      if (state->is_slice()) {
        auto reduction = reduce_scatter_async(result[1], state->group);
        result[1] = reduction.slice;
        sent = std::move(reduction.work);
      } else {
        sent = state->group.all_reduce_async(result[1]);
      }
      if (!state->overlap) sent.wait();
    }
    const auto whole = gathers ? incoming.wait() : x;
    for (std::size_t b = 0; b < state->tokens.size(); ++b) {
      const auto flat = grads[b].defined() ? grads[b].flatten(0, -2) : at::Tensor();
      result.push_back(flat.defined() && wanted.weight[b]
                           ? at::matmul(flat.t(), first(whole, state->tokens[b]).flatten(0, -2))
                           : at::Tensor());
      if (state->has_bias[b]) result.push_back(flat.defined() && wanted.bias[b] ? flat.sum(0) : at::Tensor());
    }
    sent.wait();
    return result;
  }

  struct Wanted {
    std::vector<bool> weight, bias;  ///< of each branch
    bool any = false;                ///< whether any weight's gradient is wanted
  };
  static Wanted weights_wanted(AutogradContext* ctx, const SavedColumn& state) {
    Wanted out;
    std::size_t edge = 1;  // input index of the node: x is 0
    for (const bool has_bias : state.has_bias) {
      out.weight.push_back(ctx->needs_input_grad(edge++));
      out.bias.push_back(has_bias && ctx->needs_input_grad(edge++));
      out.any = out.any || out.weight.back();
    }
    return out;
  }

  /// This rank's share of the input's gradient. Dense and newly allocated, because it is reduced in place.
  static at::Tensor input_gradient(const SavedColumn& state, const variable_list& saved, const variable_list& grads) {
    at::Tensor sum;
    const auto zeros = [&] {
      auto shape = saved.front().sizes().vec();
      if (state.is_slice()) shape[1] = state.sliced;
      return at::zeros(shape, saved.front().options());
    };
    const auto add = [&](std::size_t b) {
      if (!grads[b].defined()) return;
      const auto part = at::matmul(grads[b], saved[b + 1]);
      if (!sum.defined() && state.tokens[b] == kAllTokens) {
        sum = part.contiguous();
        return;
      }
      if (!sum.defined()) sum = zeros();
      first(sum, state.tokens[b]).add_(part);
    };
    // Branches that read all tokens come first; the others add to a part of their result.
    for (std::size_t b = 0; b < state.tokens.size(); ++b)
      if (state.tokens[b] == kAllTokens) add(b);
    for (std::size_t b = 0; b < state.tokens.size(); ++b)
      if (state.tokens[b] != kAllTokens) add(b);
    return sum.defined() ? sum : zeros();
  }
};

std::vector<at::Tensor> apply(SavedColumn state, const at::Tensor& x, const std::vector<Branch>& branches) {
  variable_list weights;
  for (const auto& branch : branches) {
    state.tokens.push_back(branch.tokens);
    state.has_bias.push_back(branch.bias.defined());
    weights.push_back(branch.weight);
    if (branch.bias.defined()) weights.push_back(branch.bias);
  }
  return ColumnProducts::apply(std::make_shared<SavedColumn>(std::move(state)), x, at::TensorList(weights));
}

}  // namespace

std::vector<at::Tensor> column_products(const at::Tensor& x, const std::vector<Branch>& branches,
                                        const comm::Group& group) {
  return apply({.group = group}, x, branches);
}

std::vector<at::Tensor> column_products_of_slices(const at::Tensor& x, std::int64_t tokens,
                                                  const std::vector<Branch>& branches, const comm::Group& group,
                                                  bool overlap) {
  return apply({.group = group, .sliced = tokens, .overlap = overlap}, x, branches);
}

}  // namespace trireme::shardformer
