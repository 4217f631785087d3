#include "core/comm/engine/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/comm/engine/combine.h"

namespace trireme::comm::engine {
namespace {

// Up to this many received bytes, an all-reduce of a few ranks is one round in which every rank receives everything.
// Above it, the ranks partition the reduction: two rounds, and half the bytes or less.
constexpr std::size_t kWholeExchange = 64u << 10;
// The minimum number of bytes that a rank reduces. In a large group some ranks therefore reduce nothing, which makes
// messages fewer and longer.
constexpr std::size_t kLeastShare = 16u << 10;
// A large reduction is done in chunks of this many bytes (summed over all ranks' parts), which bounds the scratch
// memory and keeps a chunk in the cache until it is reduced.
constexpr std::size_t kChunk = 4u << 20;
constexpr std::size_t kLeastPart = 64u << 10;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Reduces the sources, in this order, when a round is complete.
std::function<void()> combination(c10::ScalarType dtype, const c10d::ReduceOp& op, const Piece& to,
                                  std::vector<const void*> sources) {
  return [dtype, op = op.op_, to, sources = std::move(sources)] {
    combine(dtype, op, to.data, sources, to.bytes / c10::elementSize(dtype));
  };
}

}  // namespace

Backend::Call::Call(Backend& owner, c10d::OpType op, const char* name, std::chrono::milliseconds timeout,
                    bool asynchronous)
    : backend(owner), type(op), rank(owner.channel_->rank), size(owner.channel_->size) {
  program.name = name;
  program.asynchronous = asynchronous;
  program.timeout = timeout.count() > 0 ? timeout : owner.timeout();
}

void Backend::Call::refuse(const std::string& why) const {
  throw CommError(
      fmt::format("{} of group {}, rank {} of {}: {}", program.name, backend.channel_->axis, rank, size, why));
}

void Backend::Call::check_one(const Tensors& tensors, const char* what) const {
  if (tensors.size() != 1) refuse(fmt::format("got {} {}; expected one", tensors.size(), what));
}

void Backend::Call::check_list(const Tensors& tensors, const char* what) const {
  if (tensors.size() != static_cast<std::size_t>(size))
    refuse(fmt::format("got {} {}; expected one per rank", tensors.size(), what));
}

void Backend::Call::check_parts(const char* whole_name, const at::Tensor& whole, const char* part_name,
                                const at::Tensor& part) const {
  if (whole.numel() != part.numel() * size || whole.scalar_type() != part.scalar_type())
    refuse(fmt::format("the {0} has {2} elements, the {1} {3}; the {0} must be {4} times the {1}, of the same dtype",
                       whole_name, part_name, whole.numel(), part.numel(), size));
}

void Backend::Call::check_root(std::int64_t of) {
  if (of < 0 || of >= size) refuse(fmt::format("there is no rank {} in the group", of));
  named_root = static_cast<int>(of);
}

void Backend::Call::check_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  reduction = op.op_;
  try {
    check_combine(tensor.scalar_type(), op.op_);
  } catch (const CommError& error) {
    refuse(error.what());
  }
}

Piece Backend::Call::keep(const at::Tensor& tensor, bool reads, bool writes) {
  if (!tensor.defined()) refuse("a tensor is undefined");
  if (tensor.layout() != at::kStrided) refuse("only dense tensors can be sent; use to_dense()");
  if (!first_.defined()) {
    first_ = tensor;
    dtype_ = c10::getDtypeNames(tensor.scalar_type()).first;
  }
  elements_ += tensor.numel();
  const auto& host = program.tensors.emplace_back(staging.stage(tensor, reads, writes));
  if (writes) program.results.push_back(tensor);
  return piece_of(host);
}

std::vector<Piece> Backend::Call::keep_all(const Tensors& tensors, bool reads, bool writes) {
  std::vector<Piece> pieces;
  for (const auto& tensor : tensors) pieces.push_back(keep(tensor, reads, writes));
  return pieces;
}

std::vector<Piece> Backend::Call::cut(const Piece& whole, std::size_t element, std::size_t owners) const {
  const auto ranks = static_cast<std::size_t>(size);
  const auto count = whole.bytes / element;
  const auto begin = [&](std::size_t r) { return count * (r * owners / ranks) / owners * element; };
  std::vector<Piece> parts(ranks);
  for (std::size_t r = 0; r < ranks; ++r) parts[r] = {whole.data + begin(r), begin(r + 1) - begin(r)};
  return parts;
}

std::byte* Backend::Call::scratch(std::size_t bytes) {
  return program.scratch.emplace_back(backend.engine_->scratch(bytes)).get();
}

void Backend::Call::exchange(const std::vector<Piece>& to_each, const std::vector<Piece>& from_each) {
  Round round;
  each_peer([&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    round.receives.push_back({from_each[p].data, from_each[p].bytes, peer});
    round.sends.push_back({to_each[p].data, to_each[p].bytes, peer});
  });
  copy_own(round, to_each[static_cast<std::size_t>(rank)], from_each[static_cast<std::size_t>(rank)]);
  program.rounds.push_back(std::move(round));
}

void Backend::Call::exchange_with_root(int root, const Piece& mine, const std::vector<Piece>& of_ranks, bool gathers) {
  Round round;
  if (rank == root) {
    auto& transfers = gathers ? round.receives : round.sends;
    each_peer([&](int peer) {
      const auto& piece = of_ranks[static_cast<std::size_t>(peer)];
      transfers.push_back({piece.data, piece.bytes, peer});
    });
    const auto& own = of_ranks[static_cast<std::size_t>(root)];
    copy_own(round, gathers ? mine : own, gathers ? own : mine);
  } else {
    (gathers ? round.sends : round.receives).push_back({mine.data, mine.bytes, root});
  }
  program.rounds.push_back(std::move(round));
}

void Backend::Call::check_own(const Piece& from, const Piece& to) const {
  if (from.bytes != to.bytes)
    refuse(fmt::format("{} bytes from this rank to itself, {} expected", from.bytes, to.bytes));
}

void Backend::Call::copy_own(Round& round, const Piece& from, const Piece& to) const {
  check_own(from, to);
  if (from.data != to.data && from.bytes > 0) round.then = [from, to] { std::memcpy(to.data, from.data, from.bytes); };
}

std::vector<const void*> Backend::Call::receive_all(Round& round, std::byte* scratch, std::size_t slot, const void* own,
                                                    std::size_t bytes) {
  std::vector<const void*> sources(static_cast<std::size_t>(size), own);
  std::size_t at = 0;
  each_peer([&](int peer) {
    round.receives.push_back({scratch + at, bytes, peer});
    sources[static_cast<std::size_t>(peer)] = scratch + at;
    at += slot;
  });
  return sources;
}

void Backend::Call::reduce_parts(const std::vector<Piece>& to_each, const Piece& mine, c10::ScalarType dtype,
                                 c10d::ReduceOp op, bool back) {
  const auto peers = static_cast<std::size_t>(size - 1);
  std::size_t longest = 0;
  for (const auto& part : to_each) longest = std::max(longest, part.bytes);
  // A multiple of 64, and so of every element size: chunks never split an element.
  const auto step = rounded(std::max(kLeastPart, kChunk / static_cast<std::size_t>(size)));
  const auto slot = std::min(step, rounded(mine.bytes));
  auto* const received = scratch(peers * slot);
  const auto chunks = std::max<std::size_t>(1, (longest + step - 1) / step);
  // Both sides know the length of each part, and so which of its chunks exist. An empty part of a reduce-scatter is
  // sent too, because the receiver compares the sizes.
  const auto chunk_of = [&](const Piece& part, std::size_t k) -> Piece {
    const auto at = std::min(k * step, part.bytes);
    return {part.data + at, std::min(step, part.bytes - at)};
  };
  const auto exists = [back](const Piece& chunk, std::size_t k) { return chunk.bytes > 0 || (k == 0 && !back); };
  for (std::size_t k = 0; k < chunks + (back ? 1 : 0); ++k) {
    Round round;
    if (back && k > 0) {  // the reduced chunk of the previous round is sent to all
      const auto done = chunk_of(mine, k - 1);
      each_peer([&](int peer) {
        const auto theirs = chunk_of(to_each[static_cast<std::size_t>(peer)], k - 1);
        if (exists(theirs, k - 1)) round.receives.push_back({theirs.data, theirs.bytes, peer});
        if (exists(done, k - 1)) round.sends.push_back({done.data, done.bytes, peer});
      });
    }
    if (k < chunks) {
      each_peer([&](int peer) {
        const auto theirs = chunk_of(to_each[static_cast<std::size_t>(peer)], k);
        if (exists(theirs, k)) round.sends.push_back({theirs.data, theirs.bytes, peer});
      });
      const auto to = chunk_of(mine, k);
      if (exists(to, k)) {
        const auto own = chunk_of(to_each[static_cast<std::size_t>(rank)], k);
        if (own.bytes != to.bytes) refuse(fmt::format("{} bytes in, {} bytes out", own.bytes, to.bytes));
        round.then = combination(dtype, op, to, receive_all(round, received, slot, own.data, to.bytes));
      }
    }
    program.rounds.push_back(std::move(round));
  }
}

void Backend::Call::all_reduce(const Piece& tensor, c10::ScalarType dtype, const c10d::ReduceOp& op) {
  const auto element = c10::elementSize(dtype);
  const auto ranks = static_cast<std::size_t>(size), peers = ranks - 1;
  if (by_doubling(ranks * tensor.bytes)) {
    const bool any_order = c10::isIntegralType(dtype, /*includeBool=*/true) && op.op_ != c10d::ReduceOp::AVG;
    if (any_order) return reduce_by_doubling(tensor, dtype, op.op_);
    const auto pieces = gather_by_doubling(tensor, std::vector<std::size_t>(ranks, tensor.bytes));
    program.rounds.back().then = combination(dtype, op, tensor, {pieces.begin(), pieces.end()});
    return;
  }
  if (size > kFewRanks || tensor.bytes * peers > kWholeExchange) {
    const auto parts = cut(tensor, element, std::clamp<std::size_t>(tensor.bytes / kLeastShare, 1, ranks));
    return reduce_parts(parts, parts[static_cast<std::size_t>(rank)], dtype, op, true);
  }
  Round round;
  const auto slot = rounded(tensor.bytes);
  auto sources = receive_all(round, scratch(peers * slot), slot, tensor.data, tensor.bytes);
  each_peer([&](int peer) { round.sends.push_back({tensor.data, tensor.bytes, peer}); });
  round.then = combination(dtype, op, tensor, std::move(sources));
  program.rounds.push_back(std::move(round));
}

void Backend::Call::reduce_to(int root, const Piece& tensor, c10::ScalarType dtype, const c10d::ReduceOp& op) {
  const auto step = rounded(std::max(kLeastPart, kChunk / static_cast<std::size_t>(size)));
  const auto slot = std::min(step, rounded(tensor.bytes));
  auto* const received = rank == root ? scratch(static_cast<std::size_t>(size - 1) * slot) : nullptr;
  Round all_sends;
  std::size_t at = 0;
  do {
    const Piece chunk{tensor.data + at, std::min(step, tensor.bytes - at)};
    at += chunk.bytes;
    if (rank != root) {
      all_sends.sends.push_back({chunk.data, chunk.bytes, root});
      continue;
    }
    Round round;
    round.then = combination(dtype, op, chunk, receive_all(round, received, slot, chunk.data, chunk.bytes));
    program.rounds.push_back(std::move(round));
  } while (at < tensor.bytes);
  if (rank != root) program.rounds.push_back(std::move(all_sends));
}

Backend::WorkPtr Backend::Call::start() {
  program.ready = staging.ready();
  program.finish = staging.finish();
  if (program.sequence == 0) {
    const auto& channel = *backend.channel_;
    program.sequence = backend.sequence_.fetch_add(1) + 1;
    program.tag = channel.tag_half + static_cast<int>(program.sequence % static_cast<std::uint64_t>(channel.tag_half));
  }
  if (backend.check_) compare_first();
  program.entry = flight::enter(backend.channel_->flight, description());
  auto operation = c10::make_intrusive<Operation>(backend.engine_, backend.channel_, type, std::move(program));
  backend.engine_->start(operation);
  return operation;
}

}  // namespace trireme::comm::engine
