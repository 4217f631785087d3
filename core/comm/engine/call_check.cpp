// What a call is, for the flight record and for the comparison between the ranks (WorldOptions::check).
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/comm/engine/call.h"
#include "core/comm/fingerprint.h"

namespace trireme::comm::engine {
namespace {

const char* reduction_name(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    default:
      return "another reduction";
  }
}

/// Whether ranks may pass tensors of other shapes.
bool is_uneven(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::ALLGATHER_COALESCED:
    case c10d::OpType::GATHER:
    case c10d::OpType::SCATTER:
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return true;
    default:
      return false;
  }
}

Piece piece_of(Fingerprint* print) { return {reinterpret_cast<std::byte*>(print), sizeof(Fingerprint)}; }

}  // namespace

bool Backend::Call::is_message() const {
  return type == c10d::OpType::SEND || type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE;
}

flight::Call Backend::Call::description() const {
  const auto sizes = first_.defined() ? first_.sizes() : at::IntArrayRef();
  return {.op = program.name,
          .sequence = program.sequence,
          .dtype = dtype_.c_str(),
          .sizes = {sizes.data(), sizes.size()},
          .elements = elements_,
          .peer = named_peer,
          .root = named_root,
          .is_message = is_message()};
}

/// A collective begins with one more round, in which all ranks exchange what they are about to do. A message is
/// announced by another one, which its receiver takes first.
void Backend::Call::compare_first() {
  const auto& channel = *backend.channel_;
  auto* const prints = reinterpret_cast<Fingerprint*>(scratch(sizeof(Fingerprint) * static_cast<std::size_t>(size)));
  prints[rank] = Fingerprint(description(), is_uneven(type));
  if (reduction) prints[rank].set_reduction(reduction_name(*reduction));
  const auto own = piece_of(&prints[rank]);
  auto what = fmt::format("{} (sequence {}) of group {}, rank {} of {}", program.name, program.sequence, channel.axis,
                          rank, size);
  if (!is_message()) {
    Round round;
    each_peer([&](int other) {
      const auto theirs = piece_of(&prints[other]);
      round.receives.push_back({theirs.data, theirs.bytes, other});
      round.sends.push_back({own.data, own.bytes, other});
    });
    round.then = [prints, what = std::move(what), rank = rank, size = size, ranks = channel.ranks] {
      const auto text = difference(what, rank, {prints, static_cast<std::size_t>(size)}, ranks);
      if (!text.empty()) throw CommError(text);
    };
    program.rounds.insert(program.rounds.begin(), std::move(round));
    return;
  }
  auto& transfers = program.rounds.front();
  if (type == c10d::OpType::SEND) {
    transfers.sends.insert(transfers.sends.begin(), {own.data, own.bytes, named_peer});
    return;
  }
  auto* const sent = reinterpret_cast<Fingerprint*>(scratch(sizeof(Fingerprint)));
  const Transfer announcement{sent, sizeof(Fingerprint), named_peer};
  auto compare = [sent, own = prints[rank], what = std::move(what)] {
    if (!sent->fits_receive(own))
      throw CommError(fmt::format("{}: the sender calls {}, this rank {}", what, sent->text(), own.text()));
  };
  if (named_peer == kAnySource) {  // the rest of a round comes from the source of its first message
    transfers.receives.insert(transfers.receives.begin(), announcement);
    transfers.then = std::move(compare);
    return;
  }
  program.rounds.insert(program.rounds.begin(), {.receives = {announcement}, .sends = {}, .then = std::move(compare)});
}

}  // namespace trireme::comm::engine
