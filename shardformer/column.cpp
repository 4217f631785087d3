#include "shardformer/column.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "shardformer/slices.h"

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What backward must know beside tensors.
struct SavedColumn : torch::CustomClassHolder {
  explicit SavedColumn(comm::Group over) : group(std::move(over)) {}
  comm::Group group;
  std::vector<std::int64_t> tokens;  ///< of each branch
  std::vector<bool> has_bias;
  std::int64_t sliced = kAllTokens;  ///< x is a slice of so many tokens
  bool overlap = true;
  [[nodiscard]] bool is_slice() const { return sliced != kAllTokens; }
};

at::Tensor first(const at::Tensor& x, std::int64_t tokens) { return tokens == kAllTokens ? x : x.narrow(1, 0, tokens); }

struct ColumnProducts : torch::autograd::Function<ColumnProducts> {
  // TensorList: the one kind of list whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<SavedColumn>& kept, const at::Tensor& x,
                               at::TensorList weights) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    const auto whole = kept->is_slice() ? gather_async(x, kept->sliced, kept->group).wait() : x;
    variable_list saved{x}, out;
    std::size_t next = 0;
    for (std::size_t b = 0; b < kept->tokens.size(); ++b) {
      const auto& weight = weights[next++];
      const auto bias = kept->has_bias[b] ? weights[next++] : at::Tensor();
      out.push_back(at::linear(first(whole, kept->tokens[b]), weight, bias));
      saved.push_back(weight);
    }
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  // A pass may ask for the input's gradient alone, and another for the weights' alone: what each of them needs, and
  // sends, is its own.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = c10::static_intrusive_pointer_cast<SavedColumn>(ctx->saved_data.at("kept").toCapsule());
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved.front();
    const auto wanted = weights_wanted(ctx, *kept);
    Gathering arriving;
    const bool gathers = kept->is_slice() && wanted.any;
    if (gathers) arriving = gather_async(x, kept->sliced, kept->group);
    if (!kept->overlap) arriving.work.wait();
    variable_list result(2);  // of `kept`, none; of x
    comm::Work sent;
    if (ctx->needs_input_grad(0)) {
      result[1] = input_gradient(*kept, saved, grads);
      if (kept->is_slice()) {
        auto reduction = reduce_scatter_async(result[1], kept->group);
        result[1] = reduction.slice;
        sent = std::move(reduction.work);
      } else {
        sent = kept->group.all_reduce_async(result[1]);
      }
      if (!kept->overlap) sent.wait();
    }
    const auto whole = gathers ? arriving.wait() : x;
    for (std::size_t b = 0; b < kept->tokens.size(); ++b) {
      const auto flat = grads[b].defined() ? grads[b].flatten(0, -2) : at::Tensor();
      result.push_back(flat.defined() && wanted.weight[b]
                           ? at::matmul(flat.t(), first(whole, kept->tokens[b]).flatten(0, -2))
                           : at::Tensor());
      if (kept->has_bias[b]) result.push_back(flat.defined() && wanted.bias[b] ? flat.sum(0) : at::Tensor());
    }
    sent.wait();
    return result;
  }

  struct Wanted {
    std::vector<bool> weight, bias;  ///< of each branch
    bool any = false;                ///< of the weights
  };
  static Wanted weights_wanted(AutogradContext* ctx, const SavedColumn& kept) {
    Wanted out;
    std::size_t edge = 1;  // of the node: x is the first
    for (const bool has_bias : kept.has_bias) {
      out.weight.push_back(ctx->needs_input_grad(edge++));
      out.bias.push_back(has_bias && ctx->needs_input_grad(edge++));
      out.any = out.any || out.weight.back();
    }
    return out;
  }

  /// This rank's share. In memory of its own, dense: it is summed up in place.
  static at::Tensor input_gradient(const SavedColumn& kept, const variable_list& saved, const variable_list& grads) {
    at::Tensor sum;
    const auto zeros = [&] {
      auto shape = saved.front().sizes().vec();
      if (kept.is_slice()) shape[1] = kept.sliced;
      return at::zeros(shape, saved.front().options());
    };
    const auto add = [&](std::size_t b) {
      if (!grads[b].defined()) return;
      const auto part = at::matmul(grads[b], saved[b + 1]);
      if (!sum.defined() && kept.tokens[b] == kAllTokens) {
        sum = part.contiguous();
        return;
      }
      if (!sum.defined()) sum = zeros();
      first(sum, kept.tokens[b]).add_(part);
    };
    // Those of all tokens first: the rest adds to a part of theirs.
    for (std::size_t b = 0; b < kept.tokens.size(); ++b)
      if (kept.tokens[b] == kAllTokens) add(b);
    for (std::size_t b = 0; b < kept.tokens.size(); ++b)
      if (kept.tokens[b] != kAllTokens) add(b);
    return sum.defined() ? sum : zeros();
  }
};

std::vector<at::Tensor> apply(const c10::intrusive_ptr<SavedColumn>& kept, const at::Tensor& x,
                              const std::vector<Branch>& branches) {
  variable_list weights;
  for (const auto& branch : branches) {
    kept->tokens.push_back(branch.tokens);
    kept->has_bias.push_back(branch.bias.defined());
    weights.push_back(branch.weight);
    if (branch.bias.defined()) weights.push_back(branch.bias);
  }
  return ColumnProducts::apply(kept, x, at::TensorList(weights));
}

}  // namespace

std::vector<at::Tensor> column_products(const at::Tensor& x, const std::vector<Branch>& branches,
                                        const comm::Group& group) {
  return apply(c10::make_intrusive<SavedColumn>(group), x, branches);
}

std::vector<at::Tensor> column_products_of_slices(const at::Tensor& x, std::int64_t tokens,
                                                  const std::vector<Branch>& branches, const comm::Group& group,
                                                  bool overlap) {
  auto kept = c10::make_intrusive<SavedColumn>(group);
  kept->sliced = tokens;
  kept->overlap = overlap;
  return apply(kept, x, branches);
}

}  // namespace trireme::shardformer
