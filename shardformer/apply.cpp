#include "shardformer/apply.h"

#include <memory>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/block.h"
#include "core/nn/layers/dropout.h"
#include "shardformer/match.h"
#include "shardformer/roles.h"
#include "shardformer/tensor/features.h"

namespace trireme::shardformer {

Roles all_roles() {
  Roles roles;
  for (const auto add :
       {add_attention_role, add_linear_roles, add_dropout_role, add_vocabulary_roles, add_sequence_roles})
    add(roles);
  return roles;
}

/// An extension's role may cut only some of the parameters that a computation uses together, which LibTorch notices in
/// the first step: its error then names the layer, the role and what was cut.
static void name_role_in_errors(const nn::PolicyRow& row, nn::Layer& layer) {
  auto* unary = dynamic_cast<nn::Unary*>(&layer);
  std::vector<std::string> cut, whole;
  for (const auto& declared : layer.declared()) (declared.placement.is_whole() ? whole : cut).push_back(declared.name);
  if (unary == nullptr || cut.empty()) return;
  auto doing = fmt::format("its computation with a slice of {}", text::join(cut));
  if (!whole.empty()) doing += fmt::format(" and all of {}", text::join(whole));
  unary->forward.replace([compute = unary->forward.function(), row, unary, doing = std::move(doing)](
                             const at::Tensor& x, const nn::Context& context) {
    return call_role(row, *unary, doing, [&] { return compute(x, context); });
  });
}

void apply(nn::Model& model, const nn::Policy& policy, const ParallelGroups& groups, const Roles& roles) {
  const auto why = validate(model, policy, groups.sizes(), roles);
  TRIREME_CHECK(why.empty(), "{}", why);
  const auto own = all_roles();
  const ParallelContext how{groups, std::make_shared<ShardedFeatures>()};
  auto with_role = parts_of_layers(model);
  for_each(model, policy.tensor, roles.tensor, [&](const auto& row, const TensorRole& role, nn::Layer& layer) {
    with_role.emplace(&layer, &layer);
    call_role(row, layer, "cut()", [&] { role.rule.cut(layer, how); });
    if (!own.tensor.contains(row.role)) name_role_in_errors(row, layer);
  });
  // After the others: scatter_tokens adds to what a layer computes.
  for_each(model, policy.sequence, roles.sequence, [&](const auto& row, const SequenceRole& role, nn::Layer& layer) {
    with_role.emplace(&layer, &layer);
    if (groups.mode != Sequence::none) call_role(row, layer, "cut()", [&] { role.rule.cut(layer, how); });
  });
  model.apply([&](torch::nn::Module& module) {
    if (auto* dropout = dynamic_cast<nn::Dropout*>(&module); dropout != nullptr && with_role.count(dropout) == 0)
      refuse_sharded_features(*dropout, how);
  });
}

std::int64_t classes_of(nn::Model& model, const nn::Policy& policy, const Roles& roles) {
  std::int64_t classes = 0;
  for_each(model, policy.tensor, roles.tensor, [&](const auto& row, const TensorRole& role, const nn::Layer& layer) {
    if (role.classes) classes = call_role(row, layer, "classes()", [&] { return role.classes(layer); });
  });
  return classes;
}

}  // namespace trireme::shardformer
