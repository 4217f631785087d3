#include "shardformer/apply.h"

#include <memory>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/lora.h"
#include "shardformer/match.h"
#include "shardformer/sequence/sequence.h"
#include "shardformer/tensor/attention.h"
#include "shardformer/tensor/linear.h"
#include "shardformer/tensor/vocabulary.h"
#include "shardformer/validate.h"

namespace trireme::shardformer {
namespace {

using nn::TensorRole;

void cut_layer(nn::Layer& layer, TensorRole role, const ParallelContext& how) {
  const auto& group = how.groups.tensor;
  if (role == TensorRole::attention) return cut_attention(dynamic_cast<nn::SelfAttention&>(layer), how);
  if (role == TensorRole::sharded_dropout) return cut_dropout(dynamic_cast<nn::Dropout&>(layer), how);
  const bool vocab_parallel = role == TensorRole::classifier_head && how.groups.parallel_loss;
  if (auto* embedding = dynamic_cast<nn::Embedding*>(&layer)) return cut_vocabulary(*embedding, group, vocab_parallel);
  if (auto* tied = dynamic_cast<nn::TiedHead*>(&layer)) return cut_vocabulary(*tied, group);
  if (auto* gated = dynamic_cast<nn::GatedLinear*>(&layer)) return cut_column(*gated, how);
  auto& linear = dynamic_cast<nn::Linear&>(layer);
  if (role == TensorRole::row_parallel) return cut_row(linear, how);
  if (role == TensorRole::column_parallel) return cut_column(linear, how);
  cut_column_gathered(linear, group, vocab_parallel);
}

}  // namespace

void apply(nn::Model& model, const nn::Policy& policy, const ParallelGroups& groups) {
  const auto why = validate(model, policy, groups.sizes());
  TRIREME_CHECK(why.empty(), "{}", why);
  const ParallelContext how{groups, std::make_shared<ShardedFeatures>()};
  auto with_role = parts_of_layers(model);
  for_each(model, policy.tensor, [&](const auto& row, nn::Layer& layer) {
    with_role.insert(&layer);
    cut_layer(layer, row.role, how);
  });
  // After the others: scatter_tokens adds to what a layer computes.
  for_each(model, policy.sequence, [&](const auto& row, nn::Layer& layer) {
    with_role.insert(&layer);
    if (groups.mode != Sequence::none) cut_tokens(layer, row.role, groups.slices(), reuses_tensor(groups.mode));
  });
  for (const auto* linear : nn::adapted_layers(model)) with_role.insert(linear->adapter()->dropout.get());
  model.apply([&](torch::nn::Module& module) {
    if (auto* dropout = dynamic_cast<nn::Dropout*>(&module); dropout != nullptr && with_role.count(dropout) == 0)
      refuse_sharded_features(*dropout, how);
  });
}

std::int64_t classes_of(nn::Model& model, const nn::Policy& policy) {
  std::int64_t classes = 0;
  for_each(model, policy.tensor, [&](const auto& row, nn::Layer& layer) {
    if (row.role != TensorRole::classifier_head) return;
    if (const auto* embedding = dynamic_cast<const nn::Embedding*>(&layer)) classes = embedding->options().vocabulary;
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&layer);
        linear != nullptr && linear->options().out_unit == 1)
      classes = linear->options().out;
  });
  return classes;
}

}  // namespace trireme::shardformer
