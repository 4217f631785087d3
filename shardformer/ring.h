// A ring of ranks: each sends to the next and receives from the one before, while it computes with what it has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/comm/group.h"
#include "core/shard/placement.h"

namespace trireme::shardformer {

/// One hop under way: `sent` to the next rank, `received` from the one before.
struct Hop {
  comm::Work out, in;
  void wait();
};
/// Neither tensor may be touched before wait(). @pre both dense; what the rank before sends has `received`'s shape
Hop hop_async(const at::Tensor& sent, const at::Tensor& received, const comm::Group& group, int tag = 0);

/// Of `hops` before: whose slice is here.
int owner(const comm::Group& group, int hops);

/// All ranks' slices of `tokens` tokens (dim 1), one after the other, beginning with this rank's own: use(tokens,
/// slice) runs while the next one is on its way, or without `overlap` when that has arrived. Traffic a rank: the
/// whole's elements but for one slice.
using UseSlice = std::function<void(const shard::Range& tokens, const at::Tensor& slice)>;
void gather_by_ring(const at::Tensor& slice, std::int64_t tokens, const comm::Group& group, const UseSlice& use,
                    bool overlap = true);

/// This rank's slice of the sum of what each rank's make(tokens) gives for those tokens; the sum of one slice is on its
/// way while the next one's share is computed, if they overlap. make: dense, in memory of its own. Traffic a rank: as
/// above.
using MakeSlice = std::function<at::Tensor(const shard::Range& tokens)>;
at::Tensor reduce_by_ring(std::int64_t tokens, const comm::Group& group, const MakeSlice& make, bool overlap = true);

}  // namespace trireme::shardformer
