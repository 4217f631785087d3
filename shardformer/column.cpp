#include "shardformer/column.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace trireme::shardformer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What backward must know beside tensors.
struct Kept : torch::CustomClassHolder {
  explicit Kept(comm::Group over) : group(std::move(over)) {}
  comm::Group group;
  std::vector<std::int64_t> tokens;  ///< of each branch
  std::vector<bool> has_bias;
  std::vector<bool> trains;  ///< of each weight and bias: its gradient is wanted
  bool wants_input = false;
};

at::Tensor first(const at::Tensor& x, std::int64_t tokens) { return tokens == 0 ? x : x.narrow(1, 0, tokens); }

struct ColumnProducts : torch::autograd::Function<ColumnProducts> {
  // TensorList: the one kind of list whose tensors become inputs of the node.
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Kept>& kept, const at::Tensor& x,
                               at::TensorList weights) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    variable_list saved{x}, out;
    std::size_t next = 0;
    for (std::size_t b = 0; b < kept->tokens.size(); ++b) {
      const auto& weight = weights[next++];
      out.push_back(at::linear(first(x, kept->tokens[b]), weight, kept->has_bias[b] ? weights[next++] : at::Tensor()));
      saved.push_back(weight);
    }
    ctx->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data.at("kept").toCapsule());
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved.front();
    variable_list result(2);  // of `kept`, none; of x
    comm::Work sent;
    if (kept->wants_input) {
      result[1] = input_gradient(*kept, saved, grads);
      sent = kept->group.all_reduce_async(result[1]);
    }
    for (std::size_t b = 0; b < kept->tokens.size(); ++b) {
      const auto flat = grads[b].defined() ? grads[b].flatten(0, -2) : at::Tensor();
      const auto wanted = [&] { return flat.defined() && kept->trains[result.size() - 2]; };
      result.push_back(wanted() ? at::matmul(flat.t(), first(x, kept->tokens[b]).flatten(0, -2)) : at::Tensor());
      if (kept->has_bias[b]) result.push_back(wanted() ? flat.sum(0) : at::Tensor());
    }
    sent.wait();
    return result;
  }

  /// This rank's share. In memory of its own, dense: it is summed up in place.
  static at::Tensor input_gradient(const Kept& kept, const variable_list& saved, const variable_list& grads) {
    at::Tensor sum;
    const auto add = [&](std::size_t b) {
      if (!grads[b].defined()) return;
      const auto part = at::matmul(grads[b], saved[b + 1]);
      if (!sum.defined() && kept.tokens[b] == 0) {
        sum = part.contiguous();
        return;
      }
      if (!sum.defined()) sum = at::zeros_like(saved.front());
      first(sum, kept.tokens[b]).add_(part);
    };
    // Those of all tokens first: the rest adds to a part of theirs.
    for (std::size_t b = 0; b < kept.tokens.size(); ++b)
      if (kept.tokens[b] == 0) add(b);
    for (std::size_t b = 0; b < kept.tokens.size(); ++b)
      if (kept.tokens[b] != 0) add(b);
    return sum.defined() ? sum : at::zeros_like(saved.front());
  }
};

}  // namespace

std::vector<at::Tensor> column_products(const at::Tensor& x, const std::vector<Branch>& branches,
                                        const comm::Group& group) {
  auto kept = c10::make_intrusive<Kept>(group);
  variable_list weights;
  const auto add = [&](const at::Tensor& weight) {
    weights.push_back(weight);
    kept->trains.push_back(weight.requires_grad());
  };
  for (const auto& branch : branches) {
    kept->tokens.push_back(branch.tokens);
    kept->has_bias.push_back(branch.bias.defined());
    add(branch.weight);
    if (branch.bias.defined()) add(branch.bias);
  }
  kept->wants_input = x.requires_grad();
  return ColumnProducts::apply(kept, x, at::TensorList(weights));
}

}  // namespace trireme::shardformer
