// Sequence parallelism: applies the roles of layers that are given slices of the tokens. (Those of linear layers and
// attention follow from their roles in tensor parallelism.)
//
//   scatter_tokens   y = this rank's slice of f(x)
//   token_wise       y = f(x) for a slice x; a Dropout draws the mask of these tokens
//   first_token      y = the first token, on the rank that holds it; empty on the others
//   gather_tokens    y = the first token, or all tokens, on every rank
#pragma once

#include <string>

#include "core/comm/group.h"
#include "core/nn/policy.h"

namespace trireme::nn {
class Layer;
class Model;
class Unary;
}  // namespace trireme::nn

namespace trireme::shardformer {

/// Checks a layer against a role of sequence parallelism. @returns the problem, or ""
std::string validate_sequence(nn::SequenceRole role, const nn::Layer& layer);
/// Checks that the policy is complete for sequence parallelism. @returns the problem, or ""
std::string validate_sequence_policy(nn::Model& model, const nn::Policy& policy);

/// Applies a role of sequence parallelism; the tokens are sharded over `group`. `sums`: the gradients of parameters
/// that are given slices are summed over the group here, and not with all other gradients at the end.
void cut_tokens(nn::Layer& layer, nn::SequenceRole role, const comm::Group& group, bool sums);

/// For a layer that each rank of the group runs on other heads or tokens: the gradients of its parameters, which all
/// ranks hold in full, are summed over the group.
void sum_parameter_gradients(nn::Unary& layer, const comm::Group& group);

}  // namespace trireme::shardformer
