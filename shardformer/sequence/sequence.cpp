#include "shardformer/sequence/sequence.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/lora.h"
#include "core/nn/layers/tokens.h"
#include "shardformer/match.h"
#include "shardformer/sequence/slices.h"
#include "shardformer/tensor/lora.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::SequenceRole;

/// Runs `compute` with the layer's parameters replaced by copies whose gradients are summed over the ranks.
void with_summed_gradients(nn::Unary& layer, const comm::Group& group, const std::function<void()>& compute) {
  std::vector<at::Tensor> own;
  for (const auto& declared : layer.declared()) own.push_back(*declared.member);
  if (own.empty()) return compute();
  const auto set = [&](const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) *layer.declared()[i].member = tensors[i];
  };
  set(sum_gradients(own, group));
  const auto back = c10::make_scope_exit([&] { set(own); });
  compute();
}

void token_wise(nn::Unary& layer, const comm::Group& group, bool sums) {
  if (const auto* linear = dynamic_cast<const nn::Linear*>(&layer)) cut_token_wise_adapter(*linear, group, sums);
  if (auto* dropout = dynamic_cast<nn::Dropout*>(&layer))
    return dropout->mask_slice.replace([group](const at::Tensor& x, const Context& context) {
      return nn::Dropout::slice_from(x, local_tokens(context.tokens, group).begin);
    });
  if (sums) sum_parameter_gradients(layer, group);
}

void scatter(nn::Unary& layer, const comm::Group& group, bool sums) {
  layer.forward.replace(
      [&layer, compute = layer.forward.function(), group, sums](const at::Tensor& x, const Context& context) {
        const auto whole = compute(x, context);
        if (whole.size(1) != context.tokens)
          throw ConfigError(fmt::format(
              "\"{}\" returns {} tokens, but Model::tokens() says {}; it must return the number of tokens that "
              "sequence parallelism splits",
              layer.path(), whole.size(1), context.tokens));
        const auto mine = local_tokens(context.tokens, group);
        return sums ? scatter_tokens(whole, group) : whole.narrow(1, mine.begin, mine.size());
      });
}

}  // namespace

void sum_parameter_gradients(nn::Unary& layer, const comm::Group& group) {
  layer.forward.wrap(
      [&layer, group](const std::function<void()>& compute) { with_summed_gradients(layer, group, compute); });
}

std::string validate_sequence(SequenceRole role, const nn::Layer& layer) {
  if (role == SequenceRole::whole) return "";
  const bool is_first = dynamic_cast<const nn::FirstToken*>(&layer) != nullptr;
  if (role == SequenceRole::first_token)
    return is_first ? "" : fmt::format("the policy calls \"{}\" a first-token layer, which it is not", layer.path());
  if (role == SequenceRole::gather_tokens)
    return is_first || dynamic_cast<const nn::AllTokens*>(&layer) != nullptr
               ? ""
               : fmt::format(
                     "the policy gives \"{}\" the role gather_tokens, which is for an nn::FirstToken or an "
                     "nn::AllTokens",
                     layer.path());
  return dynamic_cast<const nn::Unary*>(&layer) != nullptr
             ? ""
             : fmt::format(
                   "the policy gives \"{}\" a role for layers with one input and one output tensor (nn::Unary), which "
                   "it is not",
                   layer.path());
}

std::string validate_sequence_policy(nn::Model& model, const nn::Policy& policy) {
  const auto says = [&](SequenceRole role) {
    return std::any_of(policy.sequence.begin(), policy.sequence.end(),
                       [&](const auto& row) { return row.role == role; });
  };
  if (!says(SequenceRole::scatter_tokens) || !says(SequenceRole::gather_tokens))
    return "the policy does not say where the tokens are split: give the role scatter_tokens to the layer where slices "
           "begin, and gather_tokens to the layer where they end";
  std::set<const void*> known;
  const auto know = [&](const nn::Layer& layer) {
    known.insert(&layer);
    for (const auto& declared : layer.declared()) known.insert(declared.member->unsafeGetTensorImpl());
  };
  for_each(model, policy.sequence, [&](const auto&, const nn::Layer& layer) { know(layer); });
  for_each(model, policy.tensor, [&](const auto& row, const nn::Layer& layer) {
    know(layer);
    const auto* attention = dynamic_cast<const nn::SelfAttention*>(&layer);
    if (attention != nullptr) known.insert(static_cast<const nn::Layer*>(attention->dropout.get()));
    if (attention != nullptr || row.role == nn::TensorRole::column_parallel)
      for (const auto& parameter : layer.parameters()) known.insert(parameter.unsafeGetTensorImpl());
  });
  for (const auto* linear : nn::adapted_layers(model)) {  // treated as their layers
    const auto& adapter = *linear->adapter();
    for (const nn::Layer* part :
         {static_cast<const nn::Layer*>(adapter.a.get()), static_cast<const nn::Layer*>(adapter.b.get()),
          static_cast<const nn::Layer*>(adapter.dropout.get())})
      know(*part);
  }
  constexpr const char* kSilent =
      "the policy does not say whether \"{}\" sees slices of the tokens; give its layer the role token_wise, or whole";
  for (const auto& item : model.named_parameters())
    if (known.count(item.value().unsafeGetTensorImpl()) == 0) return fmt::format(kSilent, item.key());
  std::string why;
  model.apply([&](torch::nn::Module& module) {
    const auto* dropout = dynamic_cast<const nn::Dropout*>(&module);
    if (dropout != nullptr && known.count(static_cast<const nn::Layer*>(dropout)) == 0 && why.empty())
      why = fmt::format(kSilent, dropout->path());
  });
  return why;
}

/// All ranks get what the head reads.
static void gather(nn::Unary& layer, const comm::Group& group, bool same_gradient) {
  if (dynamic_cast<nn::FirstToken*>(&layer) != nullptr)
    return layer.forward.replace([group](const at::Tensor& x, const Context&) { return first_token_to_all(x, group); });
  layer.forward.replace([group, same_gradient](const at::Tensor& x, const Context& context) {
    return gather_tokens(x, context.tokens, group, same_gradient);
  });
}

void cut_tokens(nn::Layer& layer, SequenceRole role, const comm::Group& group, bool sums) {
  if (role == SequenceRole::whole) return;
  auto& unary = dynamic_cast<nn::Unary&>(layer);
  if (role == SequenceRole::token_wise) return token_wise(unary, group, sums);
  if (role == SequenceRole::scatter_tokens) return scatter(unary, group, sums);
  // The ranks of a separate axis do not all count the loss; those of tensor parallelism all have its whole gradient.
  if (role == SequenceRole::gather_tokens) return gather(unary, group, /*same_gradient=*/sums);
  unary.forward.replace(
      [group](const at::Tensor& x, const Context&) { return x.narrow(1, 0, local_tokens(1, group).size()); });
}

}  // namespace trireme::shardformer
