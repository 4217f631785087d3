// Checks a policy against a model, and applies it: each layer gets its slice of the parameters, and a computation for
// it.
//
//   attention, column_parallel,    y_r = x W_r^T + b_r        x is on every rank; backward sums x's gradient over ranks
//   gated_column_parallel
//   row_parallel                   y = sum_r (x_r W_r^T) + b  x is sharded like the outputs of the layer before
//   sharded_dropout                y_r = dropout(x_r)         with the part of the full mask that belongs to x_r
//   column_parallel_gather_output  y = [y_0, y_1, ...]
//   classifier_head                the same, or only y_r for a loss of sharded logits
//                                  (core/nn/layers/chunked_cross_entropy.h)
//   vocab_parallel_embedding, tied_embedding, tied_head       shardformer/tensor/vocabulary.cpp
//
// The roles of sequence parallelism are in shardformer/sequence/sequence.h. Shards consist of whole units (such as
// attention heads) and may be uneven: their sizes differ by at most one unit, and a rank may have none of a small
// layer. Communication for each microbatch: one all-reduce of the activations in the forward pass of a row_parallel
// layer, and one in the backward pass of attention or a column_parallel layer. With sequence parallelism over the same
// ranks, each of them becomes an all-gather and a reduce-scatter, one in the forward pass and the other in the backward
// pass.
#pragma once

#include <cstdint>
#include <string>

#include "core/nn/policy.h"
#include "core/shardformer/role.h"

namespace trireme::nn {
class Model;
}

namespace trireme::shardformer {

/// @returns the problem of the policy with this model and these sizes, and its remedy, or "" when there is none. No
/// rank communicates.
std::string validate(nn::Model& model, const nn::Policy& policy, const ParallelSizes& sizes,
                     const Roles& roles = all_roles());

/// Shards the model's layers over the groups. @pre validate() returns "", and no parameter has memory yet
/// @throws ConfigError that names the role and the layer, for what a role's `cut` throws
void apply(nn::Model& model, const nn::Policy& policy, const ParallelGroups& groups, const Roles& roles = all_roles());

/// The number of classes of the logits that can stay sharded (TensorRole::classes); 0 when there are none.
std::int64_t classes_of(nn::Model& model, const nn::Policy& policy, const Roles& roles = all_roles());

}  // namespace trireme::shardformer
