#include "core/comm/native/wire.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/cores.h"
#include "core/base/error.h"

namespace trireme::comm::native {
namespace {

using engine::kAnySource;
using engine::kNoRequest;

// Up to this many bytes, the two copies of an eager message cost less than an announcement and the system call
// that copies once.
constexpr std::size_t kEager = 64u << 10;
// A message is copied in pieces, so that other operations proceed in between.
constexpr std::size_t kPiece = 1u << 20;

// A rank that sleeps is woken some tens of microseconds late. With fewer cores than ranks, the rank that it waits for
// needs the core.
constexpr std::chrono::microseconds kSpin{50}, kCrowdedSpin{20};

// A rank that fails lets the others know for which rank's end, behind what it was just writing to them.
constexpr std::chrono::milliseconds kLastWords{250};

}  // namespace

NativeWire::NativeWire(Processes processes)
    : rank_(processes.rank),
      own_(std::move(*processes.own)),
      bell_(own_.bell()),
      spin_(cores_of_rank(static_cast<int>(processes.others.size())) >= 1 ? kSpin : kCrowdedSpin) {
  for (auto& process : processes.others) {
    const int rank = static_cast<int>(peers_.size());
    auto& peer = *peers_.emplace_back(std::make_unique<Peer>(rank, *this, std::move(process)));
    if (rank == rank_) continue;
    open_.push_back(&peer);
    peer.link.open(RingPair(own_, rank_, *peer.process.segment, rank));
  }
}

bool NativeWire::progress() {
  bool any = !copies_.empty();
  for (auto* peer : open_) {
    any |= peer->link.readable() && peer->link.read();
    if (!peer->link.idle() && !peer->gone) any |= peer->link.flush();
  }
  if (goodbyes_ > 0) end_politely();
  for (std::size_t i = 0; i < copies_.size();) {
    auto& transfer = transfers_.at(copies_[i]);
    if (!copy_piece(transfer)) {
      ++i;
      continue;
    }
    if (!transfer.done && !transfer.lost) ask_for(transfer, copies_[i]);
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return any;
}

engine::Request NativeWire::send(const engine::Channel& channel, int tag, int peer, const std::byte* data,
                                 std::size_t bytes) {
  auto& to = peer_at(channel.ranks[static_cast<std::size_t>(peer)]);
  if (!to.link.is_open()) {  // to itself
    auto copy = scratch_->take(bytes);
    if (bytes > 0) std::memcpy(copy.get(), data, bytes);
    to.incoming.push_back({channel.context, tag, ++last_order_, bytes, std::move(copy), 0, 0});
    return kNoRequest;
  }
  const auto id = ++last_transfer_;
  Frame frame{.kind = Frame::Kind::eager, .tag = tag, .context = channel.context, .bytes = bytes};
  if (to.ended != 0) {
    // The request never completes, and its test reports the end.
  } else if (bytes <= kEager) {
    if (to.link.write(frame, data, bytes, id)) return kNoRequest;
  } else {
    frame.kind = Frame::Kind::request;
    frame.sender = id;
    frame.address = reinterpret_cast<std::uintptr_t>(data);
    to.link.write(frame);
  }
  transfers_.emplace(id, Transfer{&to, const_cast<std::byte*>(data), bytes});  // only read from
  return id;
}

std::byte* NativeWire::place(Link& link, const Frame& frame) {
  if (frame.kind == Frame::Kind::eager) {
    auto& peer = peer_at(link.rank());
    peer.offered = !peer.offered;
    if (peer.offered) {
      peer.offered_order = ++last_order_;
      return nullptr;
    }
    peer.arriving = scratch_->take(frame.bytes);
    return peer.arriving.get();
  }
  const auto& transfer = transfers_.at(frame.receiver);
  TRIREME_CHECK(frame.bytes <= transfer.bytes - transfer.moved, "rank {} sent more than it announced", link.rank());
  return transfer.data + transfer.moved;
}

void NativeWire::arrived(Link& link, const Frame& frame) {
  auto& peer = peer_at(link.rank());
  switch (frame.kind) {
    case Frame::Kind::eager:
      if (peer.receives_offered != kNoRequest) {
        transfers_.at(std::exchange(peer.receives_offered, kNoRequest)).done = true;
        break;
      }
      if (!peer.arriving) peer.arriving = scratch_->take(0);
      [[fallthrough]];
    case Frame::Kind::request:
      peer.incoming.push_back({frame.context, frame.tag, ++last_order_, frame.bytes, std::move(peer.arriving),
                               frame.sender, frame.address});
      break;
    case Frame::Kind::done:
      transfers_.at(frame.sender).done = true;
      break;
    case Frame::Kind::clear: {
      const auto& transfer = transfers_.at(frame.sender);
      link.stream(frame.receiver, transfer.data, transfer.bytes, frame.sender);
      break;
    }
    case Frame::Kind::data: {
      auto& transfer = transfers_.at(frame.receiver);
      transfer.moved += frame.bytes;
      transfer.done = transfer.moved == transfer.bytes;
      break;
    }
    case Frame::Kind::goodbye:
      peer.said_goodbye = true;
      ++goodbyes_;
      if (frame.sender > 0 && frame.sender <= peers_.size()) blamed_.push_back(peers_[frame.sender - 1].get());
      break;
  }
}

std::optional<std::uint64_t> NativeWire::oldest(const Peer& peer, std::uint64_t context, int tag) {
  for (const auto& message : peer.incoming)
    if (message.tag == tag && message.context == context) return message.order;
  const auto& offered = peer.link.stopped_at();
  if (peer.offered && offered.tag == tag && offered.context == context) return peer.offered_order;
  return std::nullopt;
}

/// There is one.
NativeWire::Incoming NativeWire::take_oldest(Peer& peer, std::uint64_t context, int tag) {
  const auto at = std::find_if(peer.incoming.begin(), peer.incoming.end(), [&](const Incoming& message) {
    return message.tag == tag && message.context == context;
  });
  if (at == peer.incoming.end())
    return {context, tag, peer.offered_order, peer.link.stopped_at().bytes, nullptr, 0, 0, /*offered=*/true};
  auto taken = std::move(*at);
  peer.incoming.erase(at);
  return taken;
}

std::optional<engine::Matched> NativeWire::match(const engine::Channel& channel, int tag, int peer) {
  const auto at = [&](int r) -> Peer& { return peer_at(channel.ranks[static_cast<std::size_t>(r)]); };
  std::optional<std::uint64_t> best;
  int source = peer;
  for (int r = peer == kAnySource ? 0 : peer; r < (peer == kAnySource ? channel.size : peer + 1); ++r) {
    const auto order = oldest(at(r), channel.context, tag);
    if (!order || (best && *order > *best)) continue;
    best = order;
    source = r;
  }
  if (!best) return std::nullopt;
  matched_ = take_oldest(at(source), channel.context, tag);
  return engine::Matched{source, matched_.bytes, 0};
}

engine::Request NativeWire::receive(const engine::Channel& channel, const engine::Matched& matched, std::byte* data) {
  auto& peer = peer_at(channel.ranks[static_cast<std::size_t>(matched.source)]);
  if (matched_.data) {
    if (matched_.bytes > 0) std::memcpy(data, matched_.data.get(), matched_.bytes);
    matched_.data = nullptr;
    return kNoRequest;
  }
  if (matched_.offered) return receive_offered(peer, data);
  Transfer transfer{&peer, data, matched_.bytes};
  transfer.sender = matched_.sender;
  transfer.address = matched_.address;
  const bool copies = peer.process.reads_memory && !copy_piece(transfer);
  if (transfer.done) return kNoRequest;
  const auto id = ++last_transfer_;
  if (copies)
    copies_.push_back(id);
  else if (!transfer.lost)
    ask_for(transfer, id);
  transfers_.emplace(id, transfer);
  return id;
}

engine::Request NativeWire::receive_offered(Peer& peer, std::byte* data) {
  const auto id = ++last_transfer_;
  auto& transfer = transfers_.emplace(id, Transfer{&peer, data, matched_.bytes}).first->second;
  peer.offered = false;
  peer.receives_offered = id;
  if (!peer.link.take(data)) return id;
  TRIREME_CHECK(transfer.done, "rank {}: a message has arrived and is not done", peer.link.rank());
  transfers_.erase(id);
  return kNoRequest;
}

void NativeWire::ask_for(const Transfer& transfer, engine::Request id) {
  transfer.peer->link.write({.kind = Frame::Kind::clear, .sender = transfer.sender, .receiver = id});
}

bool NativeWire::copy_piece(Transfer& transfer) {
  auto& process = transfer.peer->process;
  const auto bytes = std::min(kPiece, transfer.bytes - transfer.moved);
  const iovec local{transfer.data + transfer.moved, bytes};
  const iovec remote{reinterpret_cast<void*>(transfer.address + transfer.moved), bytes};
  const auto copied = process_vm_readv(process.pid, &local, 1, &remote, 1, 0);
  if (copied <= 0) {
    const bool refused = copied < 0 && (errno == EPERM || errno == EFAULT);
    if (refused && !process.has_ended()) {
      process.reads_memory = false;
      transfer.moved = 0;  // all of it is sent then
    } else {
      transfer.lost = true;
    }
    return true;
  }
  transfer.moved += static_cast<std::size_t>(copied);
  if (transfer.moved < transfer.bytes) return false;
  // If that process has ended, another one may have got its number and been read.
  transfer.lost = process.has_ended();
  if (transfer.lost) return true;
  transfer.done = true;
  transfer.peer->link.write({.kind = Frame::Kind::done, .sender = transfer.sender});
  return true;
}

std::size_t NativeWire::test(std::span<engine::Request> requests, std::span<const int> peers) {
  std::size_t completed = 0;
  std::optional<std::size_t> broken;  // the request of the peer that ended first
  int first = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] == kNoRequest) continue;
    const auto found = transfers_.find(requests[i]);
    const auto& transfer = found->second;
    if (transfer.done) {
      transfers_.erase(found);
      requests[i] = kNoRequest;
      ++completed;
    } else if (transfer.peer->ended != 0 && (!broken || transfer.peer->ended < first)) {
      broken = i;
      first = transfer.peer->ended;
    }
  }
  if (broken) throw engine::WireError(peers[*broken], "has ended");
  return completed;
}

std::optional<int> NativeWire::ended(const engine::Channel& channel, int tag, int peer) const {
  if (ended_ == 0) return std::nullopt;
  const auto order = [&](int r) -> std::optional<int> {
    const auto& other = *peers_[static_cast<std::size_t>(channel.ranks[static_cast<std::size_t>(r)])];
    if (other.ended == 0 || oldest(other, channel.context, tag)) return std::nullopt;
    return other.ended;
  };
  if (peer != kAnySource) return order(peer);
  for (int r = 0; r < channel.size; ++r)
    if (r != channel.rank && !order(r)) return std::nullopt;
  return ended_;
}

void NativeWire::end_politely() {
  for (auto* peer : open_)
    if (peer->link.readable()) peer->link.read();
  check_peers();
  // The news of an end and the goodbye of a rank that has failed for it come through different rings.
  for (auto* peer : blamed_)
    if (peer->link.rank() != rank_ && !peer->said_goodbye) end(*peer);
  blamed_.clear();
  for (auto* peer : open_)
    if (peer->said_goodbye) end(*peer);
  goodbyes_ = 0;
}

void NativeWire::end(Peer& peer) {
  if (peer.ended != 0) return;
  if (cause_ < 0 && !peer.said_goodbye) cause_ = peer.link.rank();
  peer.ended = ++ended_;
  bell_.ring();  // operations that wait for it fail now
}

void NativeWire::check_peers() {
  for (auto* peer : open_) {
    if (peer->gone || !peer->process.has_ended()) continue;
    while (peer->offered || peer->link.readable())  // what it wrote before
      if (!peer->link.read() && !peer->offered) break;
    peer->gone = true;
    if (!peer->said_goodbye) end(*peer);
  }
  if (goodbyes_ > 0) bell_.ring();  // progress() ends these
}

bool NativeWire::say_goodbye(bool wait, std::chrono::milliseconds at_most) {
  for (auto* peer : open_)
    if (!peer->gone) peer->link.write({.sender = static_cast<std::uint64_t>(cause_ + 1)});
  const auto until = engine::Clock::now() + (wait ? at_most : std::min(at_most, kLastWords));
  for (;;) {
    const auto ticket = prepare_sleep();
    const bool more = progress();
    check_peers();
    const bool written =
        std::all_of(open_.begin(), open_.end(), [](const Peer* peer) { return peer->gone || peer->link.idle(); });
    const bool over = written && std::all_of(open_.begin(), open_.end(),
                                             [](const Peer* peer) { return peer->gone || peer->ended != 0; });
    const bool leave = over || (written && !wait) || engine::Clock::now() >= until;
    if (leave || more)
      cancel_sleep();
    else
      sleep(ticket, std::chrono::milliseconds(100));
    if (leave) return over;
  }
}

}  // namespace trireme::comm::native
