#include "shardformer/apply.h"

#include <memory>

#include "core/base/error.h"
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

void apply(nn::Model& model, const nn::Policy& policy, const ParallelGroups& groups, const Roles& roles) {
  const auto why = validate(model, policy, groups.sizes(), roles);
  TRIREME_CHECK(why.empty(), "{}", why);
  const ParallelContext how{groups, std::make_shared<ShardedFeatures>()};
  auto with_role = parts_of_layers(model);
  for_each(model, policy.tensor, roles.tensor, [&](const auto&, const TensorRole& role, nn::Layer& layer) {
    with_role.emplace(&layer, &layer);
    role.rule.cut(layer, how);
  });
  // After the others: scatter_tokens adds to what a layer computes.
  for_each(model, policy.sequence, roles.sequence, [&](const auto&, const SequenceRole& role, nn::Layer& layer) {
    with_role.emplace(&layer, &layer);
    if (groups.mode != Sequence::none) role.rule.cut(layer, how);
  });
  model.apply([&](torch::nn::Module& module) {
    if (auto* dropout = dynamic_cast<nn::Dropout*>(&module); dropout != nullptr && with_role.count(dropout) == 0)
      refuse_sharded_features(*dropout, how);
  });
}

std::int64_t classes_of(nn::Model& model, const nn::Policy& policy, const Roles& roles) {
  std::int64_t classes = 0;
  for_each(model, policy.tensor, roles.tensor, [&](const auto&, const TensorRole& role, const nn::Layer& layer) {
    if (role.classes) classes = role.classes(layer);
  });
  return classes;
}

}  // namespace trireme::shardformer
