#include "shardformer/sequence/ring.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "core/base/error.h"

namespace trireme::shardformer {

comm::Work hop_async(const at::Tensor& sent, const at::Tensor& received, const comm::Group& group, int tag) {
  const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
  return group.exchange_async({{sent, next}}, {{received, before}}, tag);
}

int owner(const comm::Group& group, int hops) { return (group.rank() + group.size() - hops) % group.size(); }

void gather_by_ring(const at::Tensor& slice, std::int64_t tokens, const comm::Group& group, const UseSlice& use,
                    bool overlap, std::int64_t dim) {
  const auto range = [&](int hops) { return shard::split(tokens, group.size(), owner(group, hops)); };
  TRIREME_CHECK(slice.size(dim) == range(0).size(), "rank {} of {} has {} of {} tokens", group.rank(), group.size(),
                slice.size(dim), tokens);
  auto current = slice.contiguous();
  for (int i = 0; i < group.size(); ++i) {
    at::Tensor next;
    comm::Work hop;
    if (i + 1 < group.size()) {
      auto shape = slice.sizes().vec();
      shape[static_cast<std::size_t>(dim)] = range(i + 1).size();
      next = at::empty(shape, slice.options());
      hop = hop_async(current, next, group);
    }
    if (!overlap) hop.wait();
    use(range(i), current);
    hop.wait();
    current = std::move(next);
  }
}

at::Tensor reduce_by_ring(std::int64_t tokens, const comm::Group& group, const MakeSlice& make, bool overlap) {
  // The sum of a slice starts at the rank after its owner.
  at::Tensor sum;
  comm::Work hop;
  for (int i = 0; i < group.size(); ++i) {
    auto share = make(shard::split(tokens, group.size(), owner(group, i + 1)));
    hop.wait();
    if (i > 0) share.add_(sum);
    if (i + 1 == group.size()) return share;
    auto shape = share.sizes().vec();
    shape[1] = shard::split(tokens, group.size(), owner(group, i + 2)).size();
    sum = at::empty(shape, share.options());
    hop = hop_async(share, sum, group);
    if (!overlap) hop.wait();
  }
  return sum;
}

}  // namespace trireme::shardformer
