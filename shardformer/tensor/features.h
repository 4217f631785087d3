// Sharded features: after attention or a column_parallel layer, until its row_parallel layer, each rank holds some of
// the features of x. The layers between them and after them check that, because a policy cannot know the order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/shard/placement.h"
#include "core/shardformer/role.h"

namespace trireme::nn {
class Dropout;
struct Context;
struct Elements;
}  // namespace trireme::nn

namespace trireme::shardformer {

/// This rank's share of `size` features, in whole units.
shard::Range units_of(std::int64_t size, std::int64_t unit, const comm::Group& group);

/// The elements of a sample's full tensor that are in x, of whose `width` features this rank holds the range `mine`.
nn::Elements slice_of_features(const at::Tensor& x, shard::Range mine, std::int64_t width, const nn::Context& context,
                               const ParallelGroups& groups);

/// For a Dropout without a role, which draws the mask of full tensors: it must not be given sharded features.
void refuse_sharded_features(nn::Dropout& dropout, const ParallelContext& how);

}  // namespace trireme::shardformer
