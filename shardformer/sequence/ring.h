// A ring of ranks: each sends to the next and receives from the previous one while it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/comm/group.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {

/// One hop: `sent` goes to the next rank, `received` comes from the previous one. Neither tensor may be accessed before
/// wait(). @pre both are dense; `received` has the shape of what the previous rank sends
comm::Work hop_async(const at::Tensor& sent, const at::Tensor& received, const comm::Group& group, int tag = 0);

/// The rank whose slice is here after `hops` hops.
int owner(const comm::Group& group, int hops);

/// Passes all ranks' slices of `tokens` tokens along `dim` around the ring, starting with this rank's own: use(tokens,
/// slice) runs while the next slice is received, or without `overlap` after it. Communication per rank: the elements of
/// the full tensor less one slice.
using UseSlice = std::function<void(const shard::Range& tokens, const at::Tensor& slice)>;
void gather_by_ring(const at::Tensor& slice, std::int64_t tokens, const comm::Group& group, const UseSlice& use,
                    bool overlap = true, std::int64_t dim = 1);

/// This rank's slice of the sum of all ranks' make(tokens). The partial sum of one slice is received while this rank's
/// share of it is computed, if `overlap`. make() must return a dense, newly allocated tensor. Communication per rank:
/// the same.
using MakeSlice = std::function<at::Tensor(const shard::Range& tokens)>;
at::Tensor reduce_by_ring(std::int64_t tokens, const comm::Group& group, const MakeSlice& make, bool overlap = true);

}  // namespace trireme::shardformer
