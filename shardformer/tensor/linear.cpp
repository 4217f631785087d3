#include "shardformer/tensor/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>

#include "core/base/error.h"
#include "core/nn/layers/gated_linear.h"
#include "core/nn/layers/lora.h"
#include "core/nn/policy.h"
#include "shardformer/roles.h"
#include "shardformer/sequence/ring_products.h"
#include "shardformer/sequence/slices.h"
#include "shardformer/tensor/collectives.h"
#include "shardformer/tensor/features.h"
#include "shardformer/tensor/lora.h"

namespace trireme::shardformer {
namespace {

using nn::Context;
using nn::Linear;

/// The dims of a weight, [out, in].
constexpr std::int64_t kOut = 0, kIn = 1;

shard::Range cut_outputs(Linear& linear, const comm::Group& group) {
  const auto& o = linear.options();
  const auto mine = units_of(o.out, o.out_unit, group);
  linear.cut("weight", kOut, {mine}, group.axis());
  if (o.bias) linear.cut("bias", kOut, {mine}, group.axis());
  if (linear.adapter() != nullptr) linear.adapter()->b->cut("weight", kOut, {mine}, group.axis());
  return mine;
}

}  // namespace

at::Tensor row_product(const at::Tensor& x, const at::Tensor& weight, const ParallelGroups& groups) {
  const auto& group = groups.tensor;
  if (groups.mode == Sequence::ring) return row_product_by_ring(x, weight, group, groups.overlap);
  const auto part = at::linear(x, weight);
  return groups.mode == Sequence::split_gather ? sum_to_slices(part, group) : sum_over(part, group);
}

std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Branch>& branches, const Context& context,
                                 const ParallelGroups& groups) {
  const auto& group = groups.tensor;
  if (groups.mode == Sequence::ring) return column_products_by_ring(x, context.tokens, branches, group, groups.overlap);
  return groups.mode == Sequence::split_gather
             ? column_products_of_slices(x, context.tokens, branches, group, groups.overlap)
             : column_products(x, branches, group);
}

namespace {

void cut_column(Linear& linear, const ParallelContext& how) {
  const ShardedFeatures local_features{linear.path(), cut_outputs(linear, how.groups.tensor), linear.options().out};
  cut_column_adapter(linear, how.groups);
  linear.forward.replace([&linear, how, local_features](const at::Tensor& x, const Context& context) {
    *how.features = local_features;
    const auto deferred = linear.deferred_bias(x);
    const Branch branch{linear.weight, deferred.defined() ? at::Tensor() : linear.bias};
    const auto product = products(x, {branch}, context, how.groups).front();
    return linear.finish(linear.adapted(product, x, context), deferred);
  });
}

void cut_gated(nn::GatedLinear& gated, const ParallelContext& how) {
  auto& group = gated.projections;
  const auto& o = group.parts().front()->options();
  const ShardedFeatures local_features{gated.path(), units_of(o.out, o.out_unit, how.groups.tensor), o.out};
  group.cut({local_features.mine, local_features.mine}, how.groups.tensor.axis());
  for (const auto& part : group.parts()) cut_column_adapter(*part, how.groups);
  group.forward.replace([&group, how, local_features](const at::Tensor& x, const Context& context, std::int64_t) {
    *how.features = local_features;
    std::vector<Branch> branches;
    for (const auto& [weight, bias] : group.weights()) branches.push_back({weight, bias});
    auto y = products(x, branches, context, how.groups);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto& part = *group.parts()[i];
      y[i] = part.finish(part.adapted(y[i], x, context), {});
    }
    return y;
  });
}

void cut_column_gathered(Linear& linear, const comm::Group& group, bool parallel_in_training) {
  cut_outputs(linear, group);
  cut_gathered_adapter(linear, group);
  linear.forward.replace([&linear, group, parallel_in_training](const at::Tensor& x, const Context& context) {
    if (auto loss = linear.loss(x, context, &group); loss.defined()) return loss;
    const auto product = column_products(x, {{linear.weight, linear.bias}}, group).front();
    const auto y = linear.finish(linear.adapted(product, x, context), {});
    if (parallel_in_training && context.training) return y;
    return gather_last_dim(y, linear.options().out, linear.options().out_unit, group);
  });
}

void cut_row(Linear& linear, const ParallelContext& how) {
  const auto& o = linear.options();
  const auto& group = how.groups.tensor;
  const auto mine = units_of(o.in, o.in_unit, group);
  linear.cut("weight", kIn, {mine}, group.axis());
  cut_row_adapter(linear, mine, how.groups);
  linear.forward.replace([&linear, how](const at::Tensor& x, const Context& context) {
    *how.features = {};
    if (x.size(-1) != linear.weight.size(kIn))
      throw ConfigError(fmt::format(
          "\"{}\" has the role row_parallel and takes {} inputs on this rank, but got {}: it must follow a layer with "
          "the role attention or column_parallel, and its in_unit must be that layer's out_unit (for attention: the "
          "head size)",
          linear.path(), linear.weight.size(kIn), x.size(-1)));
    const auto y = linear.adapted(row_product(x, linear.weight, how.groups), x, context);
    const bool sums = linear.bias.defined() && reuses_tensor(how.groups.mode);
    return linear.finish(y, sums ? sum_gradients({linear.bias}, how.groups.tensor).front() : linear.bias);
  });
}

}  // namespace

void add_linear_roles(Roles& roles) {
  namespace role = nn::role;
  using Tokens = TensorRole::Tokens;
  const auto linear = [](std::function<void(Linear&, const ParallelContext&)> cut) {
    return rule_for<Linear>("a linear layer", std::move(cut));
  };
  const auto gathered = [&](bool is_head) {
    return linear([is_head](Linear& layer, const ParallelContext& how) {
      cut_column_gathered(layer, how.groups.tensor, is_head && how.groups.parallel_loss);
    });
  };
  const auto classes = [](const nn::Layer& layer) {
    const auto& o = dynamic_cast<const Linear&>(layer).options();
    return o.out_unit == 1 ? o.out : 0;
  };
  roles.tensor.add(role::column_parallel, {linear(cut_column)})
      .add(role::gated_column_parallel, {rule_for<nn::GatedLinear>("a gated linear layer", cut_gated)})
      .add(role::row_parallel, {linear(cut_row)})
      .add(role::column_parallel_gather_output, {gathered(false), Tokens::all_to_full})
      .add(role::classifier_head, {gathered(true), Tokens::all, /*is_head=*/true, classes});
}

}  // namespace trireme::shardformer
