// The ranks over which a model's layers and tokens are sharded, and the modes of sequence parallelism.
#pragma once

#include "core/comm/group.h"

namespace trireme::shardformer {

/// The first two modes reuse the tensor-parallel group: ranks hold slices between its layers, and all tokens inside
/// them. The others have a separate axis, and slices everywhere.
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

/// The number of ranks, and the mode of sequence parallelism.
struct ParallelSizes {
  int tensor = 1;
  Sequence mode = Sequence::none;
  int sequence = 1;  ///< for modes with a separate axis
};

/// The groups of ranks, and their mode of sequence parallelism.
struct ParallelGroups {
  comm::Group tensor;
  Sequence mode = Sequence::none;
  /// For modes with a separate axis; gradients of all parameters must be summed over it.
  comm::Group sequence{};
  bool parallel_loss = false;  ///< the loss is computed from sharded logits in training
  bool overlap = true;         ///< communication of sequence parallelism overlaps with matrix products
  [[nodiscard]] ParallelSizes sizes() const { return {tensor.size(), mode, sequence.valid() ? sequence.size() : 1}; }
  [[nodiscard]] bool has_own() const { return mode != Sequence::none && !reuses_tensor(mode); }
  /// The ranks that hold slices of the tokens.
  [[nodiscard]] const comm::Group& slices() const { return reuses_tensor(mode) ? tensor : sequence; }
};

}  // namespace trireme::shardformer
