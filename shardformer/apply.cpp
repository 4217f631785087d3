#include "shardformer/apply.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/nn/attention.h"
#include "core/nn/block.h"
#include "core/nn/embedding.h"
#include "core/nn/gated_linear.h"
#include "core/nn/linear.h"
#include "shardformer/collectives.h"
#include "shardformer/column.h"
#include "shardformer/match.h"
#include "shardformer/ring_products.h"
#include "shardformer/slices.h"
#include "shardformer/vocabulary.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::Linear;
using nn::Role;
using nn::SelfAttention;

/// The dims of a weight, [out, in].
constexpr std::int64_t kOut = 0, kIn = 1;

shard::Range units_of(std::int64_t size, std::int64_t unit, const comm::Group& group) {
  const auto units = shard::split(size / unit, group.size(), group.rank());
  return {units.begin * unit, units.end * unit};
}

void cut_outputs(Linear& linear, const comm::Group& group) {
  const auto& o = linear.options();
  const auto mine = units_of(o.out, o.out_unit, group);
  linear.cut("weight", kOut, mine, group.axis());
  if (o.bias) linear.cut("bias", kOut, mine, group.axis());
}

/// The range of features that this rank holds: after attention or a column_parallel layer, until row_parallel.
struct Cut {
  std::string by;  ///< path of the layer that sharded them; "" when they are not sharded
  shard::Range mine{};
  std::int64_t width = 0;
};

/// The setting in which the ranks of a tensor-parallel layer compute.
struct ParallelContext {
  comm::Group group;
  Sequence mode;
  bool overlap;
  std::shared_ptr<Cut> cut;  ///< how features are sharded after the last layer that ran
};

/// The products of x with each branch. If ranks hold slices of x, they are all-gathered or passed around the ring.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Branch>& branches, const Context& context,
                                 const ParallelContext& how) {
  const auto& [group, mode, overlap, cut] = how;
  if (mode == Sequence::ring) return column_products_by_ring(x, context.tokens, branches, group, overlap);
  return mode == Sequence::split_gather ? column_products_of_slices(x, context.tokens, branches, group, overlap)
                                        : column_products(x, branches, group);
}

void cut_column(Linear& linear, const ParallelContext& how) {
  cut_outputs(linear, how.group);
  const auto& o = linear.options();
  const Cut here{linear.path(), units_of(o.out, o.out_unit, how.group), o.out};
  linear.set_forward([&linear, how, here](const at::Tensor& x, const Context& context) {
    *how.cut = here;
    const auto late = linear.late_bias(x);
    const Branch branch{linear.weight, late.defined() ? at::Tensor() : linear.bias};
    return linear.finish(products(x, {branch}, context, how).front(), late);
  });
}

/// Both halves of a gated layer: x is gathered once, and its gradient summed once.
void cut_column(nn::GatedLinear& gated, const ParallelContext& how) {
  const auto& parts = gated.projections.parts();
  for (const auto& part : parts) cut_outputs(*part, how.group);
  const auto& o = parts.front()->options();
  const Cut here{gated.path(), units_of(o.out, o.out_unit, how.group), o.out};
  gated.projections.set_forward([&gated, how, here](const at::Tensor& x, const Context& context, std::int64_t) {
    *how.cut = here;
    std::vector<Branch> branches;
    for (const auto& part : gated.projections.parts()) branches.push_back({part->weight, part->bias});
    auto y = products(x, branches, context, how);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = gated.projections.parts()[i]->finish(y[i], {});
    return y;
  });
}

void cut_column_gathered(Linear& linear, const comm::Group& group, bool parallel_in_training) {
  cut_outputs(linear, group);
  linear.set_forward([&linear, group, parallel_in_training](const at::Tensor& x, const Context& context) {
    const auto y = linear.finish(column_products(x, {{linear.weight, linear.bias}}, group).front(), {});
    if (parallel_in_training && context.training) return y;
    return gather_last_dim(y, linear.options().out, linear.options().out_unit, group);
  });
}

at::Tensor row_product(const at::Tensor& x, const at::Tensor& weight, const ParallelContext& how) {
  const auto& [group, mode, overlap, cut] = how;
  if (mode == Sequence::ring) return row_product_by_ring(x, weight, group, overlap);
  const auto part = at::linear(x, weight);
  return mode == Sequence::split_gather ? sum_to_slices(part, group) : sum_over(part, group);
}

void cut_row(Linear& linear, const ParallelContext& how) {
  const auto& o = linear.options();
  linear.cut("weight", kIn, units_of(o.in, o.in_unit, how.group), how.group.axis());
  linear.set_forward([&linear, how](const at::Tensor& x, const Context&) {
    *how.cut = {};
    if (x.size(-1) != linear.weight.size(kIn))
      throw ConfigError(fmt::format(
          "\"{}\" has the role row_parallel and takes {} inputs on this rank, but got {}: it must follow a layer with "
          "the role attention or column_parallel, and its in_unit must be that layer's out_unit (for attention: the "
          "head size)",
          linear.path(), linear.weight.size(kIn), x.size(-1)));
    const auto y = row_product(x, linear.weight, how);
    const bool sums = linear.bias.defined() && reuses_tensor(how.mode);
    return linear.finish(y, sums ? sum_gradients({linear.bias}, how.group).front() : linear.bias);
  });
}

void cut_dropout(nn::Dropout& dropout, const ParallelGroups& groups, const std::shared_ptr<Cut>& cut) {
  dropout.set_mask_slice([path = dropout.path(), groups, cut](const at::Tensor& x, const Context& context) {
    if (cut->by.empty() || x.size(-1) != cut->mine.size())
      throw ConfigError(fmt::format(
          "\"{}\" has the role sharded_dropout, but is not between an attention or column_parallel layer and "
          "the row_parallel layer of the same block; remove it from the policy, or for sequence parallelism "
          "give it the role token_wise",
          path));
    const auto first = groups.has_own() ? tokens_here(context.tokens, groups.sequence).begin : 0;
    return nn::Elements{.count = x.size(0) > 0 ? x.numel() / x.size(0) : 0,
                        .offset = first * cut->width + cut->mine.begin,
                        .row = cut->mine.size(),
                        .stride = cut->width};
  });
}

/// A Dropout without a role draws the mask of full tensors, so it must not be given sharded features.
void refuse_cut_features(nn::Dropout& dropout, const std::shared_ptr<Cut>& cut) {
  dropout.set_mask_slice([path = dropout.path(), cut](const at::Tensor& x, const Context&) {
    if (!cut->by.empty() && x.size(-1) == cut->mine.size() && cut->mine.size() != cut->width)
      throw ConfigError(
          fmt::format("the dropout \"{}\" follows \"{}\", whose features are split over the ranks; give it the role "
                      "sharded_dropout in the policy",
                      path, cut->by));
    return nn::Elements::all(x.size(0) > 0 ? x.numel() / x.size(0) : 0);
  });
}

/// How many of the first `query_tokens` tokens are in this rank's slice.
std::int64_t first_tokens_here(std::int64_t query_tokens, const comm::Group& group) {
  TRIREME_CHECK(query_tokens == 1, "the first {} tokens are query tokens, but sequence parallelism supports only one",
                query_tokens);
  return tokens_here(query_tokens, group).size();
}

/// Whether key-value heads are sharded too: where no two ranks need the same one. Else all ranks hold all of them.
bool cuts_key_value_heads(const SelfAttention& attention, const comm::Group& group) {
  return attention.key_value_heads() == attention.heads() || attention.key_value_heads() % group.size() == 0;
}

void cut_attention(SelfAttention& attention, const ParallelGroups& groups, const std::shared_ptr<Cut>& cut) {
  const auto &group = groups.tensor, &own = groups.sequence;
  const auto &query = *attention.projections.parts()[0], &key = *attention.projections.parts()[1],
             &value = *attention.projections.parts()[2];
  const auto size = attention.head_size();
  const bool cuts_all = cuts_key_value_heads(attention, group);
  const auto mine = shard::split(attention.heads(), group.size(), group.rank());
  for (const auto& part : attention.projections.parts())
    if (cuts_all || part.get() == &query) cut_outputs(*part, group);
  if (!cuts_all) attention.set_heads_here(mine);
  // The mask of [B, heads, ...] is drawn for this rank's heads.
  attention.dropout->set_slice_begin_at(mine.begin);
  const Cut here{attention.path(), {mine.begin * size, mine.end * size}, attention.heads() * size};
  const bool slices = groups.has_own();
  if (slices) attend_to_slices(attention, mine, own, groups.mode, groups.overlap);
  const ParallelContext how{group, groups.mode, groups.overlap, cut};
  attention.projections.set_forward([=, &query, &key, &value, whole = !cuts_all](
                                        const at::Tensor& x, const Context& context, std::int64_t query_tokens) {
    *how.cut = here;
    std::vector<Branch> branches{{query.weight, query.bias}, {key.weight, key.bias}, {value.weight, value.bias}};
    if (whole) {  // each rank uses some of the heads, so that it has a part of their gradients
      std::vector<at::Tensor> shared{key.weight, value.weight};
      if (key.bias.defined()) shared.insert(shared.end(), {key.bias, value.bias});
      const auto summed = sum_gradients(shared, how.group);
      for (std::size_t i = 0; i < 2; ++i) {
        branches[i + 1].weight = summed[i];
        if (key.bias.defined()) branches[i + 1].bias = summed[i + 2];
      }
    }
    if (query_tokens != 0) branches.front().tokens = slices ? first_tokens_here(query_tokens, own) : query_tokens;
    return products(x, branches, context, how);
  });
}

/// The layers that belong to an attention layer or a gated one and are sharded with it.
std::set<const nn::Layer*> parts_of_layers(nn::Model& model) {
  std::set<const nn::Layer*> parts;
  model.apply([&](torch::nn::Module& module) {
    const auto* gated = dynamic_cast<nn::GatedLinear*>(&module);
    if (const auto* attention = dynamic_cast<SelfAttention*>(&module)) {
      for (const auto& part : attention->projections.parts()) parts.insert(part.get());
      parts.insert(attention->dropout.get());
    } else if (gated != nullptr) {
      for (const auto& part : gated->projections.parts()) parts.insert(part.get());
    }
  });
  return parts;
}

bool is_of_sequence(Role role) {
  return role == Role::scatter_tokens || role == Role::token_wise || role == Role::first_token ||
         role == Role::gather_tokens || role == Role::whole;
}

/// Checks a layer against its role. @returns the problem, or ""
std::string validate(const nn::PolicyRow& row, const nn::Layer& layer, const ParallelSizes& sizes) {
  if (is_of_sequence(row.role)) return validate_sequence(row, layer);
  const bool is_embedding = dynamic_cast<const nn::Embedding*>(&layer) != nullptr;
  if (row.role == Role::vocab_parallel_embedding)
    return is_embedding ? "" : fmt::format("the policy calls \"{}\" an embedding, which it is not", layer.path());
  if (row.role == Role::sharded_dropout)
    return dynamic_cast<const nn::Dropout*>(&layer) != nullptr
               ? ""
               : fmt::format("the policy calls \"{}\" a dropout, which it is not", layer.path());
  const bool is_gated = row.role == Role::column_parallel && dynamic_cast<const nn::GatedLinear*>(&layer) != nullptr;
  if (row.role != Role::attention)
    return is_gated || dynamic_cast<const Linear*>(&layer) != nullptr ||
                   (row.role == Role::classifier_head &&
                    (is_embedding || dynamic_cast<const nn::TiedHead*>(&layer) != nullptr))
               ? ""
               : fmt::format("the policy calls \"{}\" a linear layer, which it is not", layer.path());
  const auto* attention = dynamic_cast<const SelfAttention*>(&layer);
  if (attention == nullptr)
    return fmt::format("the policy calls \"{}\" an attention layer, which it is not", layer.path());
  const auto heads = attention->heads();
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

std::string validate(nn::Model& model, const nn::Policy& policy, const ParallelSizes& sizes) {
  std::map<const nn::PolicyRow*, int> met;
  std::map<const nn::Layer*, std::string> row_of;
  std::string why;
  const auto parts = parts_of_layers(model);
  for_each(model, policy, [&](const nn::PolicyRow& row, nn::Layer& layer) {
    ++met[&row];
    const auto [other, fresh] = row_of.try_emplace(&layer, row.layer);
    if (!fresh && why.empty())
      why = fmt::format("two entries of the policy, \"{}\" and \"{}\", match the layer \"{}\"; remove one",
                        other->second, row.layer, layer.path());
    if (why.empty() && parts.count(&layer) != 0)
      why = fmt::format(
          "\"{}\" is part of an attention or gated layer, which is split as a whole: give that layer the role "
          "attention "
          "or column_parallel",
          layer.path());
    if (why.empty()) why = validate(row, layer, sizes);
  });
  for (const auto& row : policy)
    if (met[&row] == 0 && why.empty())
      why = fmt::format("the policy names \"{}\", but the model has no such layer; is the policy for another model?",
                        row.layer);
  if (why.empty() && sizes.mode != Sequence::none) why = validate_sequence_policy(model, policy);
  return why;
}

void apply(nn::Model& model, const nn::Policy& policy, const ParallelGroups& groups) {
  const auto why = validate(model, policy, groups.sizes());
  TRIREME_CHECK(why.empty(), "{}", why);
  const auto cut = std::make_shared<Cut>();
  const ParallelContext how{groups.tensor, groups.mode, groups.overlap, cut};
  auto with_role = parts_of_layers(model);
  for_each(model, policy, [&](const nn::PolicyRow& it, nn::Layer& layer) {
    with_role.insert(&layer);
    if (is_of_sequence(it.role)) {
      if (how.mode != Sequence::none) cut_tokens(layer, it.role, groups.slices(), reuses_tensor(how.mode));
      return;
    }
    if (it.role == Role::attention) return cut_attention(dynamic_cast<SelfAttention&>(layer), groups, cut);
    if (it.role == Role::sharded_dropout) return cut_dropout(dynamic_cast<nn::Dropout&>(layer), groups, cut);
    const bool vocab_parallel = it.role == Role::classifier_head && groups.parallel_loss;
    if (auto* embedding = dynamic_cast<nn::Embedding*>(&layer))
      return cut_vocabulary(*embedding, how.group, vocab_parallel);
    if (auto* tied = dynamic_cast<nn::TiedHead*>(&layer)) return cut_vocabulary(*tied, how.group);
    if (auto* gated = dynamic_cast<nn::GatedLinear*>(&layer)) return cut_column(*gated, how);
    auto& linear = dynamic_cast<Linear&>(layer);
    if (it.role == Role::row_parallel) return cut_row(linear, how);
    if (it.role == Role::column_parallel) return cut_column(linear, how);
    cut_column_gathered(linear, how.group, vocab_parallel);
  });
  model.apply([&](torch::nn::Module& module) {
    if (auto* dropout = dynamic_cast<nn::Dropout*>(&module); dropout != nullptr && with_role.count(dropout) == 0)
      refuse_cut_features(*dropout, cut);
  });
}

std::int64_t classes_of(nn::Model& model, const nn::Policy& policy) {
  std::int64_t classes = 0;
  for_each(model, policy, [&](const nn::PolicyRow& it, nn::Layer& layer) {
    if (it.role != Role::classifier_head) return;
    if (const auto* embedding = dynamic_cast<const nn::Embedding*>(&layer)) classes = embedding->options().vocabulary;
    if (const auto* linear = dynamic_cast<const Linear*>(&layer); linear != nullptr && linear->options().out_unit == 1)
      classes = linear->options().out;
  });
  return classes;
}

}  // namespace trireme::shardformer
