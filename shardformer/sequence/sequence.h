// Sequence parallelism: the roles of layers that are given slices of the tokens. (Those of linear layers and attention
// follow from their roles in tensor parallelism.)
//
//   scatter_tokens   y = this rank's slice of f(x)
//   token_wise       y = f(x) for a slice x; a Dropout draws the mask of these tokens
//   first_token      y = the first token, on the rank that holds it; empty on the others
//   gather_tokens    y = the first token, or all tokens, on every rank
#pragma once

#include "core/shardformer/role.h"

namespace trireme::shardformer {

/// The role token_wise for a layer and its parts. Where the slices reuse the tensor-parallel ranks, the gradients of
/// their parameters are summed over these here, else with all other gradients at the end.
void cut_token_wise(nn::Unary& layer, const ParallelGroups& groups);

/// For a layer that each rank of the group runs on other heads or tokens: the gradients of its parameters, which all
/// ranks hold in full, are summed over the group.
void sum_parameter_gradients(nn::Unary& layer, const comm::Group& group);

}  // namespace trireme::shardformer
