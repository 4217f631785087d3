// Small messages in large groups: each rank sends log2(N) messages, where a direct exchange would send N - 1.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/comm/engine/call.h"
#include "core/comm/engine/combine.h"

namespace trireme::comm::engine {
namespace {

// Up to this many bytes per rank, gathering everything by recursive doubling costs less than N - 1 messages. For any
// N, the limit is twice a message's latency (about a microsecond) divided by the transfer time of a byte (0.1 to 0.3
// ns).
constexpr std::size_t kSmall = 8u << 10;

}  // namespace

bool Backend::Call::by_doubling(std::size_t bytes_of_all) const {
  return size > kFewRanks && bytes_of_all <= kSmall * static_cast<std::size_t>(size);
}

// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997: after
// k rounds a rank has the pieces of 2^k ranks, starting with its own, and sends them to the rank 2^k before it.
std::vector<const std::byte*> Backend::Call::gather_by_doubling(const Piece& mine,
                                                                const std::vector<std::size_t>& bytes) {
  const auto ranks = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  std::vector<std::size_t> begin(ranks + 1, 0);  // offset of the i-th rank, counted from this one
  for (std::size_t i = 0; i < ranks; ++i) begin[i + 1] = begin[i] + bytes[(me + i) % ranks];
  auto* const all = scratch(begin[ranks]);
  Round own;  // sends nothing, because the copy from the device to the host may not be complete before it
  own.then = [all, mine] {
    if (mine.bytes > 0) std::memcpy(all, mine.data, mine.bytes);
  };
  program.rounds.push_back(std::move(own));
  for (std::size_t have = 1; have < ranks; have *= 2) {
    const auto more = std::min(have, ranks - have);
    Round round;
    round.sends.push_back({all, begin[more], static_cast<int>((me + ranks - have) % ranks)});
    round.receives.push_back(
        {all + begin[have], begin[have + more] - begin[have], static_cast<int>((me + have) % ranks)});
    program.rounds.push_back(std::move(round));
  }
  std::vector<const std::byte*> pieces(ranks);
  for (std::size_t i = 0; i < ranks; ++i) pieces[(me + i) % ranks] = all + begin[i];
  return pieces;
}

// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005: in round k each
// rank adds the partial result of the rank 2^k away. Ranks beyond the largest power of two first send theirs to a rank
// below it, and receive the result from that rank.
void Backend::Call::reduce_by_doubling(const Piece& tensor, c10::ScalarType dtype, c10d::ReduceOp::RedOpType op) {
  int power = 1;
  while (2 * power <= size) power *= 2;
  const auto count = tensor.bytes / c10::elementSize(dtype);
  auto* const theirs = scratch(tensor.bytes);
  const auto add_round = [&](int to, int from, std::byte* into) {
    Round round;
    if (to >= 0) round.sends.push_back({tensor.data, tensor.bytes, to});
    if (from >= 0) round.receives.push_back({into, tensor.bytes, from});
    if (into == theirs)
      round.then = [dtype, op, tensor, theirs, count] {
        const void* both[] = {tensor.data, theirs};
        combine(dtype, op, tensor.data, both, count);
      };
    program.rounds.push_back(std::move(round));
  };
  if (rank >= power) {
    add_round(rank - power, -1, nullptr);
    return add_round(-1, rank - power, tensor.data);
  }
  const bool has_more = rank + power < size;
  if (has_more) add_round(-1, rank + power, theirs);
  for (int bit = 1; bit < power; bit *= 2) add_round(rank ^ bit, rank ^ bit, theirs);
  if (has_more) add_round(rank + power, -1, nullptr);
}

void Backend::Call::gather_all(const Piece& mine, const std::vector<Piece>& from_each) {
  std::vector<std::size_t> bytes;
  for (const auto& piece : from_each) bytes.push_back(piece.bytes);
  if (!by_doubling(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0})))
    return exchange(std::vector<Piece>(static_cast<std::size_t>(size), mine), from_each);
  check_own(mine, from_each[static_cast<std::size_t>(rank)]);
  auto gathered = gather_by_doubling(mine, bytes);
  program.rounds.back().then = [from_each, pieces = std::move(gathered)] {
    for (std::size_t r = 0; r < pieces.size(); ++r)
      if (from_each[r].bytes > 0) std::memcpy(from_each[r].data, pieces[r], from_each[r].bytes);
  };
}

void Backend::Call::broadcast(int root, const Piece& piece) {
  // Ranks are numbered from the root: i receives from i without its lowest set bit, and sends to i + 1, i + 2, i + 4,
  // ... below that bit.
  const int me = (rank - root + size) % size;
  const auto world = [&](int i) { return (i + root) % size; };
  Round from_parent, to_children;
  int bit = 1;
  if (size <= kFewRanks) {  // the root sends to each rank in one round
    if (me != 0) from_parent.receives.push_back({piece.data, piece.bytes, root});
    for (int i = 1; me == 0 && i < size; ++i) to_children.sends.push_back({piece.data, piece.bytes, world(i)});
  } else {
    while (bit < size && (me & bit) == 0) bit *= 2;
    if (me != 0) from_parent.receives.push_back({piece.data, piece.bytes, world(me - bit)});
    for (bit /= 2; bit > 0; bit /= 2)
      if (me + bit < size) to_children.sends.push_back({piece.data, piece.bytes, world(me + bit)});
  }
  if (me != 0) program.rounds.push_back(std::move(from_parent));
  if (!to_children.sends.empty()) program.rounds.push_back(std::move(to_children));
}

}  // namespace trireme::comm::engine
