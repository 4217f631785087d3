#include "shardformer/sequence/sequence.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <vector>

#include "core/base/error.h"
#include "core/nn/layers/tokens.h"
#include "core/nn/policy.h"
#include "shardformer/roles.h"
#include "shardformer/sequence/slices.h"

namespace trireme::shardformer {
namespace {

using nn::Context;

/// Runs `compute` with the layer's parameters replaced by copies whose gradients are summed over the ranks.
void with_summed_gradients(nn::Unary& layer, const comm::Group& group, const std::function<void()>& compute) {
  std::vector<at::Tensor> own;
  for (const auto& declared : layer.declared()) own.push_back(*declared.member);
  const auto set = [&](const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) *layer.declared()[i].member = tensors[i];
  };
  set(sum_gradients(own, group));
  const auto back = c10::make_scope_exit([&] { set(own); });
  compute();
}

void cut_scatter(nn::Unary& layer, const ParallelContext& how) {
  const bool sums = reuses_tensor(how.groups.mode);
  layer.forward.replace([&layer, compute = layer.forward.function(), group = how.groups.slices(), sums](
                            const at::Tensor& x, const Context& context) {
    const auto whole = compute(x, context);
    if (whole.size(1) != context.tokens)
      throw ConfigError(
          fmt::format("\"{}\" returns {} tokens, but Model::tokens() says {}; it must return the number of tokens that "
                      "sequence parallelism splits",
                      layer.path(), whole.size(1), context.tokens));
    const auto mine = local_tokens(context.tokens, group);
    return sums ? scatter_tokens(whole, group) : whole.narrow(1, mine.begin, mine.size());
  });
}

/// All ranks get what the head reads.
void cut_gather(nn::HeadTokens& layer, const ParallelContext& how) {
  // The ranks of a separate axis do not all count the loss; those of tensor parallelism all have its whole gradient.
  const bool same_gradient = reuses_tensor(how.groups.mode);
  layer.forward.replace([group = how.groups.slices(), same_gradient, only_first = layer.only_first()](
                            const at::Tensor& x, const Context& context) {
    return only_first ? first_token_to_all(x, group) : gather_tokens(x, context.tokens, group, same_gradient);
  });
}

void cut_first_token(nn::FirstToken& layer, const ParallelContext& how) {
  layer.forward.replace([group = how.groups.slices()](const at::Tensor& x, const Context&) {
    return x.narrow(1, 0, local_tokens(1, group).size());
  });
}

}  // namespace

void cut_token_wise(nn::Unary& layer, const ParallelGroups& groups) {
  for (auto* part : layer.sharded_parts()) cut_token_wise(*part, groups);
  layer.set_first_token(
      [group = groups.slices()](const Context& context) { return local_tokens(context.tokens, group).begin; });
  if (reuses_tensor(groups.mode)) sum_parameter_gradients(layer, groups.tensor);
}

void sum_parameter_gradients(nn::Unary& layer, const comm::Group& group) {
  if (layer.declared().empty()) return;
  layer.forward.wrap(
      [&layer, group](const std::function<void()>& compute) { with_summed_gradients(layer, group, compute); });
}

void add_sequence_roles(Roles& roles) {
  namespace role = nn::role;
  using Place = SequenceRole::Place;
  constexpr const char* kUnary = "a layer with one input and one output tensor (nn::Unary)";
  roles.sequence.add(role::scatter_tokens, {rule_for<nn::Unary>(kUnary, cut_scatter), Place::begin})
      .add(role::gather_tokens,
           {rule_for<nn::HeadTokens>("an nn::FirstToken or an nn::AllTokens", cut_gather), Place::end})
      .add(role::token_wise,
           {rule_for<nn::Unary>(
                kUnary, [](nn::Unary& layer, const ParallelContext& how) { cut_token_wise(layer, how.groups); }),
            Place::inside})
      .add(role::first_token, {rule_for<nn::FirstToken>("a first-token layer", cut_first_token), Place::inside})
      .add(role::whole, {rule_for<nn::Layer>("a layer", [](nn::Layer&, const ParallelContext&) {}), Place::outside});
}

}  // namespace trireme::shardformer
