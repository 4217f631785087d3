// The role attention: the heads of an attention layer, and its tokens, are sharded over ranks. In the modes with a
// separate axis, q, k and v are slices of the tokens.
//
// Keys and values of heads that are fewer than the ranks: a rank holds some rows of their weights, and needs the heads
// of its queries, which other ranks need too. The weights are all-gathered in the forward pass, and their gradients
// reduce-scattered: together as much as an all-reduce of the gradients.
#include "core/nn/layers/attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <vector>

#include "core/base/error.h"
#include "core/nn/policy.h"
#include "shardformer/roles.h"
#include "shardformer/sequence/head_exchange.h"
#include "shardformer/sequence/ring_attention.h"
#include "shardformer/sequence/sequence.h"
#include "shardformer/sequence/slices.h"
#include "shardformer/tensor/linear.h"
#include "shardformer/tensor/lora.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::LinearGroup;
using nn::SelfAttention;

/// Whether key-value heads are sharded as the others are: where no two ranks need the same one.
bool shards_key_value_heads(const SelfAttention& attention, const comm::Group& group) {
  return attention.key_value_heads() == attention.heads() || attention.key_value_heads() % group.size() == 0;
}

/// How many of the first `query_tokens` tokens are in this rank's slice.
std::int64_t local_query_tokens(std::int64_t query_tokens, const comm::Group& group) {
  TRIREME_CHECK(query_tokens == 1, "the first {} tokens are query tokens, but sequence parallelism supports only one",
                query_tokens);
  return local_tokens(query_tokens, group).size();
}

/// Gathers the adapters' rows for all keys and values, of which each rank holds some.
void gather_rows(std::vector<LinearGroup::OutputAdapter>& adapters, std::int64_t rows, const comm::Group& group) {
  for (std::size_t i = 1; i < adapters.size(); ++i)
    if (auto& weight = adapters[i].weight; weight.defined())
      weight = gather_tokens(weight.unsqueeze(0), rows, group, /*same_gradient=*/false).squeeze(0);
}

/// The weights of all keys and values, [key, value], of which each rank holds some rows: in one all-gather.
std::vector<LinearGroup::Weights> gathered(const LinearGroup::Weights& key, const LinearGroup::Weights& value,
                                           std::int64_t rows, const comm::Group& group) {
  const bool has_bias = key.bias.defined();
  const auto packed = [&](const LinearGroup::Weights& of) {
    return has_bias ? at::cat({of.weight, of.bias.unsqueeze(1)}, 1) : of.weight;
  };
  const auto all = gather_tokens(at::stack({packed(key), packed(value)}), rows, group, /*same_gradient=*/false);
  std::vector<LinearGroup::Weights> out;
  for (const auto& part : all.unbind(0)) {
    const auto in = key.weight.size(1);
    out.push_back({has_bias ? part.narrow(1, 0, in) : part, has_bias ? part.select(1, in) : at::Tensor()});
  }
  return out;
}

/// Shards the projections: this rank computes the heads `mine` of the queries, and the heads of keys and values that
/// these need, or all of them.
void cut_projections(SelfAttention& attention, shard::Range mine, const ParallelContext& how) {
  const auto& group = how.groups.tensor;
  auto& projections = attention.projections;
  const auto size = attention.head_size(), rows = attention.key_value_heads() * size;
  const bool shares = !shards_key_value_heads(attention, group);
  const ShardedFeatures local_features{
      attention.path(), {mine.begin * size, mine.end * size}, attention.heads() * size};
  const auto others = units_of(rows, shares ? 1 : size, group);
  projections.cut({local_features.mine, others, others}, group.axis());
  for (const auto& part : projections.parts()) cut_column_adapter(*part, how.groups);
  const bool slices = how.groups.has_own();
  projections.forward.replace(
      [=, &projections](const at::Tensor& x, const Context& context, std::int64_t query_tokens) {
        *how.features = local_features;
        if (projections.fused() && !shares && query_tokens == 0) {
          const auto& fused = *projections.parts().front();
          const auto product = products(x, {{fused.weight, fused.bias}}, context, how.groups).front();
          return projections.split(fused.adapted(product, x, context));
        }
        const auto weights = projections.weights();
        std::vector<Branch> branches{{weights[0].weight, weights[0].bias}};
        if (query_tokens != 0)
          branches.front().tokens = slices ? local_query_tokens(query_tokens, how.groups.sequence) : query_tokens;
        for (const auto& [weight, bias] : shares ? gathered(weights[1], weights[2], rows, how.groups.tensor)
                                                 : std::vector<LinearGroup::Weights>{weights[1], weights[2]})
          branches.push_back({weight, bias});
        auto y = products(x, branches, context, how.groups);
        auto adapters = projections.adapters();
        if (shares) gather_rows(adapters, rows, how.groups.tensor);
        add_adapter_outputs(y, adapters, branches, x, context, how.groups);
        return y;
      });
  if (!shares) return;
  const auto of_each = attention.heads() / attention.key_value_heads();  // heads that share one of keys and values
  attention.expand_key_value_heads.replace([mine, of_each](const at::Tensor& x) {
    const auto first = mine.begin / of_each, end = (mine.end + of_each - 1) / of_each;
    return nn::repeat_heads(x.narrow(1, first, end - first), (end - first) * of_each)
        .narrow(1, mine.begin - first * of_each, mine.size());
  });
}

std::int64_t queries_of(const Context& context, std::int64_t query_tokens) {
  return query_tokens == 0 ? context.tokens : query_tokens;
}

void set_ring_attention(SelfAttention& attention, shard::Range heads, const ParallelGroups& groups) {
  attention.set_uses_kernel(false);
  attention.attend.replace([heads, group = groups.sequence, overlap = groups.overlap, dropout = attention.dropout](
                               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Context& context,
                               std::int64_t query_tokens, const nn::AttentionPattern& pattern) {
    return ring_attention(q, k, v,
                          {.group = group,
                           .query_tokens = queries_of(context, query_tokens),
                           .tokens = context.tokens,
                           .pattern = pattern,
                           .dropout = dropout.get(),
                           .context = context,
                           .first_head = heads.begin,
                           .overlap = overlap});
  });
}

void set_all_to_all_attention(SelfAttention& attention, shard::Range heads, const comm::Group& group) {
  const auto first_head = heads.begin + shard::split(heads.size(), group.size(), group.rank()).begin;
  attention.attend.replace([=, &attention](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const Context& context, std::int64_t query_tokens,
                                           const nn::AttentionPattern& pattern) {
    // Key-value heads are exchanged as they are where each rank gets whole ones for its share of the heads.
    const auto count = k.size(1) % group.size() == 0 ? k.size(1) : q.size(1);
    const auto all = tokens_to_heads({q, nn::repeat_heads(k, count), nn::repeat_heads(v, count)},
                                     {queries_of(context, query_tokens), context.tokens, context.tokens}, group);
    return heads_to_tokens(
        nn::attention(all[0], all[1], all[2], *attention.dropout, context, pattern, attention.kernel(), first_head),
        heads.size(), group);
  });
}

void set_local_attention(SelfAttention& attention, shard::Range heads) {
  attention.attend.replace([&attention, first = heads.begin](const at::Tensor& q, const at::Tensor& k,
                                                             const at::Tensor& v, const Context& context, std::int64_t,
                                                             const nn::AttentionPattern& pattern) {
    return nn::attention(q, k, v, *attention.dropout, context, pattern, attention.kernel(), first);
  });
}

void cut_attention(SelfAttention& attention, const ParallelContext& how) {
  const auto& groups = how.groups;
  const auto mine = shard::split(attention.heads(), groups.tensor.size(), groups.tensor.rank());
  cut_projections(attention, mine, how);
  for (auto* norm : {attention.query_norm.get(), attention.key_norm.get()})
    if (norm != nullptr) sum_parameter_gradients(*norm, groups.tensor);  // each rank has some of the heads
  if (!groups.has_own()) return set_local_attention(attention, mine);
  attention.first_token.replace(
      [group = groups.sequence](const Context& context) { return local_tokens(context.tokens, group).begin; });
  if (groups.mode == Sequence::ring_attn) return set_ring_attention(attention, mine, groups);
  set_all_to_all_attention(attention, mine, groups.sequence);
}

std::string validate_attention(const SelfAttention& attention, const ParallelSizes& sizes) {
  const auto heads = attention.heads();
  if (heads < sizes.tensor)
    return fmt::format("{} ranks cannot share {} attention heads; choose at most {}", sizes.tensor, heads, heads);
  if (sizes.mode == Sequence::all_to_all && heads / sizes.tensor < sizes.sequence)
    return fmt::format(
        "all_to_all needs an attention head for each of {} ranks, but {} {}; choose sp_size at most {}, or the mode "
        "ring_attn",
        sizes.sequence, sizes.tensor > 1 ? "a tensor-parallel rank has only" : "there are only", heads / sizes.tensor,
        heads / sizes.tensor);
  return "";
}

}  // namespace

void add_attention_role(Roles& roles) {
  roles.tensor.add(nn::role::attention,
                   {.rule = rule_for<SelfAttention>("an attention layer", cut_attention, validate_attention)});
}

}  // namespace trireme::shardformer
