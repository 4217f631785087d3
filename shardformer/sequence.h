// Sequence parallelism: applies the roles of layers that are given slices of the tokens. (Linear layers and attention
// are in apply.cpp.)
//
//   scatter_tokens   y = this rank's slice of f(x)
//   token_wise       y = f(x) for a slice x; a Dropout draws the mask of these tokens
//   first_token      y = the first token, on the rank that holds it; empty on the others
//   gather_tokens    y = the first token, or all tokens, on every rank
#pragma once

#include <string>

#include "core/comm/group.h"
#include "core/nn/policy.h"
#include "core/shard/placement.h"

namespace trireme::nn {
class Layer;
class Model;
class SelfAttention;
}  // namespace trireme::nn

namespace trireme::shardformer {

/// The modes. The first two reuse the tensor-parallel group: ranks hold slices between its layers, and all tokens
/// inside them. The others have a separate axis, and slices everywhere.
enum class Sequence {
  none,
  split_gather,  ///< all-gather before attention and column_parallel, reduce-scatter after row_parallel
  ring,          ///< the same, slice by slice, each overlapping with the products of the one before
  all_to_all,    ///< each rank computes the attention of some heads, over all tokens
  ring_attn,     ///< ring attention: keys and values travel from rank to rank
};
/// Whether the tensor-parallel ranks hold the slices.
constexpr bool reuses_tensor(Sequence mode) { return mode == Sequence::split_gather || mode == Sequence::ring; }
/// Whether communication can overlap with computation; in all_to_all there is nothing to overlap with.
constexpr bool overlaps(Sequence mode) { return reuses_tensor(mode) || mode == Sequence::ring_attn; }

/// Checks a layer against a role of sequence parallelism. @returns the problem, or ""
std::string validate_sequence(const nn::PolicyRow& row, const nn::Layer& layer);
/// Checks that the policy is complete for sequence parallelism. @returns the problem, or ""
std::string validate_sequence_policy(nn::Model& model, const nn::Policy& policy);

/// Applies a role of sequence parallelism; `group` holds the slices. `sums`: the gradients of parameters that are given
/// slices are summed over the group here, and not with all other gradients at the end.
void cut_tokens(nn::Layer& layer, nn::Role role, const comm::Group& group, bool sums);

/// Sets attention over slices, for a mode with a separate axis. `heads`: the heads that this rank projects. `overlap`:
/// communication overlaps with products.
void attend_to_slices(nn::SelfAttention& attention, shard::Range heads, const comm::Group& group, Sequence mode,
                      bool overlap);

}  // namespace trireme::shardformer
