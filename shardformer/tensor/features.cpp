#include "shardformer/tensor/features.h"

#include "core/base/error.h"
#include "core/nn/layers/dropout.h"
#include "core/nn/policy.h"
#include "shardformer/roles.h"
#include "shardformer/sequence/slices.h"

namespace trireme::shardformer {

shard::Range units_of(std::int64_t size, std::int64_t unit, const comm::Group& group) {
  const auto units = shard::split(size / unit, group.size(), group.rank());
  return {units.begin * unit, units.end * unit};
}

nn::Elements slice_of_features(const at::Tensor& x, shard::Range mine, std::int64_t width, const nn::Context& context,
                               const ParallelGroups& groups) {
  const auto first = groups.has_own() ? local_tokens(context.tokens, groups.sequence).begin : 0;
  return {.count = x.size(0) > 0 ? x.numel() / x.size(0) : 0,
          .offset = first * width + mine.begin,
          .row = mine.size(),
          .stride = width};
}

static void cut_dropout(nn::Dropout& dropout, const ParallelContext& how) {
  dropout.mask_slice.replace([path = dropout.path(), how](const at::Tensor& x, const nn::Context& context) {
    const auto& [groups, features] = how;
    if (features->by.empty() || x.size(-1) != features->mine.size())
      throw ConfigError(fmt::format(
          "\"{}\" has the role sharded_dropout, but is not between an attention or column_parallel layer and "
          "the row_parallel layer of the same block; remove it from the policy, or for sequence parallelism "
          "give it the role token_wise",
          path));
    return slice_of_features(x, features->mine, features->width, context, groups);
  });
}

void add_dropout_role(Roles& roles) {
  roles.tensor.add(nn::role::sharded_dropout, {.rule = rule_for<nn::Dropout>("a dropout", cut_dropout)});
}

void refuse_sharded_features(nn::Dropout& dropout, const ParallelContext& how) {
  dropout.mask_slice.replace([path = dropout.path(), features = how.features](const at::Tensor& x, const nn::Context&) {
    if (!features->by.empty() && x.size(-1) == features->mine.size() && features->mine.size() != features->width)
      throw ConfigError(
          fmt::format("the dropout \"{}\" follows \"{}\", whose features are split over the ranks; give it the role "
                      "sharded_dropout in the policy",
                      path, features->by));
    return nn::Elements::all(x.size(0) > 0 ? x.numel() / x.size(0) : 0);
  });
}

}  // namespace trireme::shardformer
