// Sequence parallelism's roles: what a policy does to the layers between which ranks have slices of the tokens. The
// linear layers and the attention are apply.cpp's.
//
//   scatter_tokens   y = this rank's slice of f(x)
//   by_token         y = f(x), x a slice; a Dropout draws the mask of those tokens of the whole
//   first_token      y = the first token, for the rank that has it; nothing for the others
//   gather_tokens    y = the first token, on every rank
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

/// How the work on slices is shared out. The first two reuse the tensor-parallel group: slices between its layers, all
/// tokens inside them. The others have ranks of their own, and slices everywhere.
enum class Sequence {
  none,
  split_gather,  ///< all-gather before heads and columns, reduce-scatter after rows
  ring,          ///< the same, a slice after the other, while the products of the one before are computed
  all_to_all,    ///< attention over all tokens for some of the heads
  ring_attn,     ///< attention over slices, with keys and values that travel
};
/// Whether tensor-parallel ranks are those that have slices.
constexpr bool reuses_tensor(Sequence mode) { return mode == Sequence::split_gather || mode == Sequence::ring; }
/// Whether it sends while it computes. all_to_all has nothing to compute meanwhile.
constexpr bool overlaps(Sequence mode) { return reuses_tensor(mode) || mode == Sequence::ring_attn; }

/// Why a layer cannot have a role of sequence parallelism; "": it can.
std::string why_not_sequence(const nn::PolicyRow& row, const nn::Layer& layer);
/// Why the policy does not say enough of the model for sequence parallelism; "": it does.
std::string why_no_sequence(nn::Model& model, const nn::Policy& policy);

/// Carries out a role of sequence parallelism over the ranks that have slices. `sums`: gradients of parameters that see
/// slices are summed over them here, rather than with all others' at the end.
void cut_tokens(nn::Layer& layer, nn::Role role, const comm::Group& group, bool sums);

/// The attention of slices, in a mode with ranks of its own. `heads`: those of the layer that this rank projects.
/// `overlap`: hops run beside products.
void attend_by_slices(nn::SelfAttention& attention, shard::Range heads, const comm::Group& group, Sequence mode,
                      bool overlap);

}  // namespace trireme::shardformer
