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

/// Dims of a weight, [out, in].
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

/// What of the features a rank has, where they are cut: after heads or a column, until the row.
struct Cut {
  std::string by;  ///< path of the layer; "": they are whole
  shard::Range mine{};
  std::int64_t width = 0;
};

/// How the ranks of a tensor-parallel layer work together.
struct Together {
  comm::Group group;
  Sequence mode;
  bool overlap;
  std::shared_ptr<Cut> cut;  ///< as it is between two layers
};

/// The products of x, or of the slices of it that the ranks have.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Branch>& branches, const Context& context,
                                 const Together& how) {
  const auto& [group, mode, overlap, cut] = how;
  if (mode == Sequence::ring) return column_products_by_ring(x, context.tokens, branches, group, overlap);
  return mode == Sequence::split_gather ? column_products_of_slices(x, context.tokens, branches, group, overlap)
                                        : column_products(x, branches, group);
}

void column(Linear& linear, const Together& how) {
  cut_outputs(linear, how.group);
  const auto& o = linear.options();
  const Cut here{linear.path(), units_of(o.out, o.out_unit, how.group), o.out};
  linear.compute_by([&linear, how, here](const at::Tensor& x, const Context& context) {
    *how.cut = here;
    const auto late = linear.late_bias(x);
    const Branch branch{linear.weight, late.defined() ? at::Tensor() : linear.bias};
    return linear.finish(products(x, {branch}, context, how).front(), late);
  });
}

void gathered_column(Linear& linear, const comm::Group& group, bool apart_in_training) {
  cut_outputs(linear, group);
  linear.compute_by([&linear, group, apart_in_training](const at::Tensor& x, const Context& context) {
    const auto y = linear.finish(column_products(x, {{linear.weight, linear.bias}}, group).front(), {});
    if (apart_in_training && context.training) return y;
    return gather_last_dim(y, linear.options().out, linear.options().out_unit, group);
  });
}

at::Tensor row_product(const at::Tensor& x, const at::Tensor& weight, const Together& how) {
  const auto& [group, mode, overlap, cut] = how;
  if (mode == Sequence::ring) return row_product_by_ring(x, weight, group, overlap);
  const auto part = at::linear(x, weight);
  return mode == Sequence::split_gather ? sum_to_slices(part, group) : sum_over(part, group);
}

void row(Linear& linear, const Together& how) {
  const auto& o = linear.options();
  linear.cut("weight", kIn, units_of(o.in, o.in_unit, how.group), how.group.axis());
  linear.compute_by([&linear, how](const at::Tensor& x, const Context&) {
    *how.cut = {};
    if (x.size(-1) != linear.weight.size(kIn))
      throw ConfigError(fmt::format(
          "\"{}\" has the role row and takes {} inputs on this rank, but got {}: it must follow a layer with the role "
          "heads or column, and its in_unit must be that layer's out_unit (for heads: the head size)",
          linear.path(), linear.weight.size(kIn), x.size(-1)));
    const auto y = row_product(x, linear.weight, how);
    const bool sums = linear.bias.defined() && reuses_tensor(how.mode);
    return linear.finish(y, sums ? sum_gradients({linear.bias}, how.group).front() : linear.bias);
  });
}

void inside(nn::Dropout& dropout, const Groups& groups, const std::shared_ptr<Cut>& cut) {
  dropout.hold_by([path = dropout.path(), groups, cut](const at::Tensor& x, const Context& context) {
    if (cut->by.empty() || x.size(-1) != cut->mine.size())
      throw ConfigError(
          fmt::format("\"{}\" has the role inside, but is not between a heads or column layer and the row layer of the "
                      "same block; remove it from the policy, or for sequence parallelism give it the role by_token",
                      path));
    const auto first = groups.has_own() ? tokens_here(context.tokens, groups.sequence).begin : 0;
    return nn::Elements{.count = x.size(0) > 0 ? x.numel() / x.size(0) : 0,
                        .offset = first * cut->width + cut->mine.begin,
                        .row = cut->mine.size(),
                        .stride = cut->width};
  });
}

/// A Dropout that nobody speaks of draws a whole's mask.
void refuse_cut_features(nn::Dropout& dropout, const std::shared_ptr<Cut>& cut) {
  dropout.hold_by([path = dropout.path(), cut](const at::Tensor& x, const Context&) {
    if (!cut->by.empty() && x.size(-1) == cut->mine.size() && cut->mine.size() != cut->width)
      throw ConfigError(
          fmt::format("the dropout \"{}\" follows \"{}\", whose features are split over the ranks; give it the role "
                      "inside in the policy",
                      path, cut->by));
    return nn::Elements::all(x.size(0) > 0 ? x.numel() / x.size(0) : 0);
  });
}

/// Of the first `asking` tokens: so many are in this rank's slice. A FirstToken is what asks.
std::int64_t first_tokens_here(std::int64_t asking, const comm::Group& group) {
  TRIREME_CHECK(asking == 1, "the first {} tokens are query tokens, but sequence parallelism supports only one",
                asking);
  return tokens_here(asking, group).size();
}

void heads(SelfAttention& attention, const Groups& groups, const std::shared_ptr<Cut>& cut) {
  const auto &group = groups.tensor, &own = groups.sequence;
  const auto linears = {attention.query, attention.key, attention.value};
  for (const auto& linear : linears) cut_outputs(*linear, group);
  // The mask of [B, heads, ...] is drawn for the heads that are here.
  const auto mine = shard::split(attention.heads(), group.size(), group.rank());
  attention.dropout->begin_at(mine.begin);
  const auto size = attention.query->options().out_unit;
  const Cut here{attention.path(), {mine.begin * size, mine.end * size}, attention.heads() * size};
  const bool slices = groups.has_own();
  if (slices) attend_by_slices(attention, mine, own, groups.mode, groups.overlap);
  const Together how{group, groups.mode, groups.overlap, cut};
  attention.project_by(
      [&attention, how, own = own, slices, here](const at::Tensor& x, const Context& context, std::int64_t asking) {
        *how.cut = here;
        const auto branch = [](const Linear& linear) { return Branch{linear.weight, linear.bias}; };
        std::vector<Branch> branches{branch(*attention.query), branch(*attention.key), branch(*attention.value)};
        if (asking != 0) branches.front().tokens = slices ? first_tokens_here(asking, own) : asking;
        auto y = products(x, branches, context, how);
        return std::array<at::Tensor, 3>{std::move(y[0]), std::move(y[1]), std::move(y[2])};
      });
}

/// The layers inside attentions, which are cut with them.
std::set<const nn::Layer*> inside_attentions(nn::Model& model) {
  std::set<const nn::Layer*> inside;
  model.apply([&](torch::nn::Module& module) {
    if (const auto* attention = dynamic_cast<SelfAttention*>(&module))
      inside.insert({attention->query.get(), attention->key.get(), attention->value.get(), attention->dropout.get()});
  });
  return inside;
}

bool is_of_sequence(Role role) {
  return role == Role::scatter_tokens || role == Role::by_token || role == Role::first_token ||
         role == Role::gather_tokens || role == Role::whole;
}

/// Why a layer cannot have a role; "": it can.
std::string why_not(const nn::PolicyRow& row, const nn::Layer& layer, const Sizes& sizes) {
  if (is_of_sequence(row.role)) return why_not_sequence(row, layer);
  const bool is_embedding = dynamic_cast<const nn::Embedding*>(&layer) != nullptr;
  if (row.role == Role::vocabulary)
    return is_embedding ? "" : fmt::format("the policy calls \"{}\" an embedding, which it is not", layer.path());
  if (row.role == Role::inside)
    return dynamic_cast<const nn::Dropout*>(&layer) != nullptr
               ? ""
               : fmt::format("the policy calls \"{}\" a dropout, which it is not", layer.path());
  if (row.role != Role::heads)
    return dynamic_cast<const Linear*>(&layer) != nullptr || (row.role == Role::labels && is_embedding)
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

std::string why_not(nn::Model& model, const nn::Policy& policy, const Sizes& sizes) {
  std::map<const nn::PolicyRow*, int> met;
  std::map<const nn::Layer*, std::string> row_of;
  std::string why;
  const auto inside = inside_attentions(model);
  for_each(model, policy, [&](const nn::PolicyRow& row, nn::Layer& layer) {
    ++met[&row];
    const auto [other, fresh] = row_of.try_emplace(&layer, row.layer);
    if (!fresh && why.empty())
      why = fmt::format("two entries of the policy, \"{}\" and \"{}\", match the layer \"{}\"; remove one",
                        other->second, row.layer, layer.path());
    if (why.empty() && inside.count(&layer) != 0)
      why = fmt::format(
          "\"{}\" is part of an attention layer, which is split as a whole: give the attention layer the role heads",
          layer.path());
    if (why.empty()) why = why_not(row, layer, sizes);
  });
  for (const auto& row : policy)
    if (met[&row] == 0 && why.empty())
      why = fmt::format("the policy names \"{}\", but the model has no such layer; is the policy for another model?",
                        row.layer);
  if (why.empty() && sizes.mode != Sequence::none) why = why_no_sequence(model, policy);
  return why;
}

void apply(nn::Model& model, const nn::Policy& policy, const Groups& groups) {
  const auto why = why_not(model, policy, groups.sizes());
  TRIREME_CHECK(why.empty(), "{}", why);
  const auto cut = std::make_shared<Cut>();
  const Together how{groups.tensor, groups.mode, groups.overlap, cut};
  auto spoken_of = inside_attentions(model);
  for_each(model, policy, [&](const nn::PolicyRow& it, nn::Layer& layer) {
    spoken_of.insert(&layer);
    if (is_of_sequence(it.role)) {
      if (how.mode != Sequence::none) cut_tokens(layer, it.role, groups.slices(), reuses_tensor(how.mode));
      return;
    }
    if (it.role == Role::heads) return heads(dynamic_cast<SelfAttention&>(layer), groups, cut);
    if (it.role == Role::inside) return inside(dynamic_cast<nn::Dropout&>(layer), groups, cut);
    const bool apart = it.role == Role::labels && groups.labels_apart;
    if (auto* embedding = dynamic_cast<nn::Embedding*>(&layer)) return cut_vocabulary(*embedding, how.group, apart);
    auto& linear = dynamic_cast<Linear&>(layer);
    if (it.role == Role::row) return row(linear, how);
    if (it.role == Role::column) return column(linear, how);
    gathered_column(linear, how.group, apart);
  });
  model.apply([&](torch::nn::Module& module) {
    if (auto* dropout = dynamic_cast<nn::Dropout*>(&module); dropout != nullptr && spoken_of.count(dropout) == 0)
      refuse_cut_features(*dropout, cut);
  });
}

std::int64_t classes_of(nn::Model& model, const nn::Policy& policy) {
  std::int64_t classes = 0;
  for_each(model, policy, [&](const nn::PolicyRow& it, nn::Layer& layer) {
    if (it.role != Role::labels) return;
    if (const auto* embedding = dynamic_cast<const nn::Embedding*>(&layer)) classes = embedding->options().vocabulary;
    if (const auto* linear = dynamic_cast<const Linear*>(&layer); linear != nullptr && linear->options().out_unit == 1)
      classes = linear->options().out;
  });
  return classes;
}

}  // namespace trireme::shardformer
