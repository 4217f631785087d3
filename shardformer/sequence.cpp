#include "shardformer/sequence.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/nn/attention.h"
#include "core/nn/block.h"
#include "core/nn/tokens.h"
#include "shardformer/head_exchange.h"
#include "shardformer/match.h"
#include "shardformer/ring_attention.h"
#include "shardformer/slices.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::Role;

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
  if (auto* dropout = dynamic_cast<nn::Dropout*>(&layer))
    return dropout->set_slice_begin(
        [group](const Context& context) { return tokens_here(context.tokens, group).begin; });
  if (sums)
    layer.wrap_forward(
        [&layer, group](const std::function<void()>& compute) { with_summed_gradients(layer, group, compute); });
}

void scatter(nn::Unary& layer, const comm::Group& group, bool sums) {
  layer.set_forward([&layer, group, sums](const at::Tensor& x, const Context& context) {
    const auto whole = layer.plain(x, context);
    if (whole.size(1) != context.tokens)
      throw ConfigError(
          fmt::format("\"{}\" returns {} tokens, but Model::tokens() says {}; it must return the number of tokens that "
                      "sequence parallelism splits",
                      layer.path(), whole.size(1), context.tokens));
    const auto mine = tokens_here(context.tokens, group);
    return sums ? scatter_tokens(whole, group) : whole.narrow(1, mine.begin, mine.size());
  });
}

}  // namespace

std::string validate_sequence(const nn::PolicyRow& row, const nn::Layer& layer) {
  if (row.role == Role::whole) return "";
  const bool is_first = dynamic_cast<const nn::FirstToken*>(&layer) != nullptr;
  if (row.role == Role::first_token)
    return is_first ? "" : fmt::format("the policy calls \"{}\" a first-token layer, which it is not", layer.path());
  if (row.role == Role::gather_tokens)
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
  const auto says = [&](Role role) {
    return std::any_of(policy.begin(), policy.end(), [&](const auto& row) { return row.role == role; });
  };
  if (!says(Role::scatter_tokens) || !says(Role::gather_tokens))
    return "the policy does not say where the tokens are split: give the role scatter_tokens to the layer where slices "
           "begin, and gather_tokens to the layer where they end";
  std::set<const void*> known;
  for_each(model, policy, [&](const nn::PolicyRow& row, nn::Layer& layer) {
    known.insert(&layer);
    for (const auto& declared : layer.declared()) known.insert(declared.member->unsafeGetTensorImpl());
    auto* attention = dynamic_cast<nn::SelfAttention*>(&layer);
    if (attention != nullptr) known.insert(attention->dropout.get());
    if (attention != nullptr || row.role == Role::column_parallel)
      for (const auto& parameter : layer.parameters()) known.insert(parameter.unsafeGetTensorImpl());
  });
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
    return layer.set_forward([group](const at::Tensor& x, const Context&) { return first_token_to_all(x, group); });
  layer.set_forward([group, same_gradient](const at::Tensor& x, const Context& context) {
    return gather_tokens(x, context.tokens, group, same_gradient);
  });
}

void cut_tokens(nn::Layer& layer, Role role, const comm::Group& group, bool sums) {
  if (role == Role::whole) return;
  auto& unary = dynamic_cast<nn::Unary&>(layer);
  if (role == Role::token_wise) return token_wise(unary, group, sums);
  if (role == Role::scatter_tokens) return scatter(unary, group, sums);
  // The ranks of a separate axis do not all count the loss; those of tensor parallelism all have its whole gradient.
  if (role == Role::gather_tokens) return gather(unary, group, /*same_gradient=*/sums);
  unary.set_forward(
      [group](const at::Tensor& x, const Context&) { return x.narrow(1, 0, tokens_here(1, group).size()); });
}

void attend_to_slices(nn::SelfAttention& attention, shard::Range heads, const comm::Group& group, Sequence mode,
                      bool overlap) {
  const auto tokens = [](const Context& context, std::int64_t query_tokens) {
    return query_tokens == 0 ? context.tokens : query_tokens;
  };
  const auto& dropout = attention.dropout;
  attention.set_first_token([group](const Context& context) { return tokens_here(context.tokens, group).begin; });
  if (mode == Sequence::ring_attn)
    return attention.set_attention([=](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const Context& context, std::int64_t query_tokens,
                                       const nn::AttentionPattern& pattern) {
      return ring_attention(q, k, v,
                            {.group = group,
                             .query_tokens = tokens(context, query_tokens),
                             .tokens = context.tokens,
                             .pattern = pattern,
                             .dropout = dropout.get(),
                             .context = context,
                             .first_head = heads.begin,
                             .overlap = overlap});
    });
  dropout->set_slice_begin_at(heads.begin + shard::split(heads.size(), group.size(), group.rank()).begin);
  attention.set_attention([=, &attention](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                          const Context& context, std::int64_t query_tokens,
                                          const nn::AttentionPattern& pattern) {
    // Key-value heads are exchanged as they are where each rank gets whole ones for its share of the heads.
    const auto count = k.size(1) % group.size() == 0 ? k.size(1) : q.size(1);
    const auto all = tokens_to_heads({q, nn::repeat_heads(k, count), nn::repeat_heads(v, count)},
                                     {tokens(context, query_tokens), context.tokens, context.tokens}, group);
    return heads_to_tokens(nn::attention(all[0], all[1], all[2], *dropout, context, pattern, attention.fused()),
                           heads.size(), group);
  });
}

}  // namespace trireme::shardformer
