#include "shardformer/apply.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/attention.h"
#include "core/nn/block.h"
#include "core/nn/linear.h"
#include "shardformer/collectives.h"
#include "shardformer/column.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::Linear;
using nn::Role;
using nn::SelfAttention;

/// Dims of a weight, [out, in].
constexpr std::int64_t kOut = 0, kIn = 1;

/// Name by name: a '*' stays between two dots.
bool meets(std::string_view pattern, std::string_view path) {
  const auto dot = pattern.find('.'), at = path.find('.');
  const auto name = path.substr(0, at), wanted = pattern.substr(0, dot);
  if (wanted.find('*') == std::string_view::npos ? wanted != name : !text::matches(name, wanted)) return false;
  if (dot == std::string_view::npos || at == std::string_view::npos) return dot == at;
  return meets(pattern.substr(dot + 1), path.substr(at + 1));
}

/// Calls use(row, layer) for each layer that a row meets; once, though a shared layer has several parents.
template <class Use>
void for_each(nn::Model& model, const nn::Policy& policy, const Use& use) {
  for (const auto& row : policy) {
    std::set<const nn::Layer*> seen;
    model.apply([&](torch::nn::Module& module) {
      auto* layer = dynamic_cast<nn::Layer*>(&module);
      if (layer != nullptr && meets(row.layer, layer->path()) && seen.insert(layer).second) use(row, *layer);
    });
  }
}

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

void column(Linear& linear, const comm::Group& group, bool gathers) {
  cut_outputs(linear, group);
  linear.compute_by([&linear, group, gathers](const at::Tensor& x, const Context&) {
    const auto y = column_products(x, {{linear.weight, linear.bias}}, group).front();
    return gathers ? gather_last_dim(y, linear.options().out, linear.options().out_unit, group) : y;
  });
}

void row(Linear& linear, const comm::Group& group) {
  const auto& o = linear.options();
  linear.cut("weight", kIn, units_of(o.in, o.in_unit, group), group.axis());
  linear.compute_by([&linear, group](const at::Tensor& x, const Context&) {
    if (x.size(-1) != linear.weight.size(kIn))
      throw ConfigError(
          fmt::format("the policy's row \"{}\" takes {} inputs on this rank, and is given {}: it must follow heads or "
                      "a column, and "
                      "its in_unit must be that layer's out_unit (for heads: a head's size)",
                      linear.path(), linear.weight.size(kIn), x.size(-1)));
    auto y = sum_over(at::linear(x, linear.weight), group);
    return linear.bias.defined() ? y.add_(linear.bias) : y;
  });
}

void heads(SelfAttention& attention, const comm::Group& group) {
  const auto linears = {attention.query, attention.key, attention.value};
  for (const auto& linear : linears) cut_outputs(*linear, group);
  // The mask of [B, heads, ...] is drawn for the heads that are here.
  attention.dropout->begin_at(shard::split(attention.heads(), group.size(), group.rank()).begin);
  attention.project_by([&attention, group](const at::Tensor& x, std::int64_t asking) {
    const auto branch = [](const Linear& linear, std::int64_t tokens) {
      return Branch{linear.weight, linear.bias, tokens};
    };
    auto y = column_products(x,
                             {branch(*attention.query, asking == x.size(1) ? 0 : asking), branch(*attention.key, 0),
                              branch(*attention.value, 0)},
                             group);
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

/// Why a layer cannot have a role; "": it can.
std::string why_not(const nn::PolicyRow& row, const nn::Layer& layer, int ranks) {
  if (row.role != Role::heads)
    return dynamic_cast<const Linear*>(&layer) != nullptr
               ? ""
               : fmt::format("the policy calls \"{}\" a linear layer, which it is not", layer.path());
  const auto* attention = dynamic_cast<const SelfAttention*>(&layer);
  if (attention == nullptr)
    return fmt::format("the policy calls \"{}\" an attention layer, which it is not", layer.path());
  if (attention->heads() < ranks)
    return fmt::format("{} ranks cannot share {} attention heads; choose at most {}", ranks, attention->heads(),
                       attention->heads());
  return "";
}

}  // namespace

std::string why_not(nn::Model& model, const nn::Policy& policy, int ranks) {
  std::map<const nn::PolicyRow*, int> met;
  std::map<const nn::Layer*, std::string> row_of;
  std::string why;
  const auto inside = inside_attentions(model);
  for_each(model, policy, [&](const nn::PolicyRow& row, nn::Layer& layer) {
    ++met[&row];
    const auto [other, fresh] = row_of.try_emplace(&layer, row.layer);
    if (!fresh && why.empty())
      why = fmt::format("two rows of the policy, \"{}\" and \"{}\", mean the layer \"{}\"; leave one", other->second,
                        row.layer, layer.path());
    if (why.empty() && inside.count(&layer) != 0)
      why = fmt::format("\"{}\" is a part of an attention layer, which is cut as a whole: give that the role heads",
                        layer.path());
    if (why.empty()) why = why_not(row, layer, ranks);
  });
  for (const auto& row : policy)
    if (met[&row] == 0 && why.empty())
      why = fmt::format("the policy is for another model: it speaks of \"{}\", and there is no such layer", row.layer);
  return why;
}

void apply(nn::Model& model, const nn::Policy& policy, const comm::Group& group) {
  TRIREME_CHECK(why_not(model, policy, group.size()).empty(), "{}", why_not(model, policy, group.size()));
  for_each(model, policy, [&](const nn::PolicyRow& it, nn::Layer& layer) {
    if (it.role == Role::heads) return heads(dynamic_cast<SelfAttention&>(layer), group);
    auto& linear = dynamic_cast<Linear&>(layer);
    if (it.role == Role::row) return row(linear, group);
    column(linear, group, it.role == Role::gathered_column);
  });
}

}  // namespace trireme::shardformer
