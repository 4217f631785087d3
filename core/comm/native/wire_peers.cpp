// The other ranks' processes: connections, sleeping until one of them has something, and their ends.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/comm/native/ring_pipe.h"
#include "core/comm/native/wire.h"

namespace trireme::comm::native {
namespace {

// A rank that sleeps is woken some tens of microseconds late. With fewer cores than ranks, the rank that it waits for
// needs the core.
constexpr std::chrono::microseconds kSpin{50}, kCrowdedSpin{20};

// A rank that fails lets the others know for which rank's end, behind what it was just writing to them.
constexpr std::chrono::milliseconds kLastWords{250};

}  // namespace

NativeWire::NativeWire(Connections connections)
    : connections_(std::move(connections)),
      epoll_(connections_.wake_reads ? epoll_create1(EPOLL_CLOEXEC) : -1),
      bell_(connections_.own->bell()),
      spin_(cores_of_rank(connections_.on_this_host) >= 1 ? kSpin : kCrowdedSpin) {
  if (connections_.wake_reads) {
    if (!epoll_) throw CommError(no_descriptor("cannot create an epoll", errno));
    epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connections_.wake_reads.get(), &event);
    bell_.also_write(connections_.wake_writes.get());
  }
  for (int rank = 0; rank < connections_.size; ++rank) {
    auto& peer = *peers_.emplace_back(
        std::make_unique<Peer>(rank, *this, std::move(connections_.others[static_cast<std::size_t>(rank)])));
    if (rank == connections_.rank) continue;
    open_.push_back(&peer);
    if (auto& segment = peer.connection.segment) {
      Doorbell bell(segment->bell());
      if (peer.connection.wake) bell.also_write(peer.connection.wake.get());
      peer.link.open(std::make_unique<RingPipe>(*connections_.own, connections_.rank, *segment, rank, bell));
    } else {
      auto pipe = std::make_unique<SocketPipe>(std::move(peer.connection.socket), epoll_.get(), &peer);
      peer.socket = pipe.get();
      peer.link.open(std::move(pipe));
    }
  }
}

NativeWire::~NativeWire() = default;

void NativeWire::read_events() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    if (auto* peer = static_cast<Peer*>(events[static_cast<std::size_t>(i)].data.ptr)) {
      peer->socket->notice();
      continue;
    }
    std::array<char, 256> rings;
    (void)!::read(connections_.wake_reads.get(), rings.data(), rings.size());
  }
}

bool NativeWire::read(Peer& peer) {
  if (peer.gone) return false;
  const bool any = peer.link.readable() && peer.link.read();
  if (!peer.link.closed()) return any;
  peer.gone = true;
  if (!peer.said_goodbye) end(peer);
  return true;
}

void NativeWire::end_politely() {
  if (epoll_) read_events();
  for (auto* peer : open_) read(*peer);
  check_peers();
  // The news of an end and the goodbye of a rank that has failed for it come over different connections.
  for (auto* peer : blamed_)
    if (peer->link.rank() != connections_.rank && !peer->said_goodbye) end(*peer);
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
    if (peer->gone || peer->socket != nullptr || !peer->connection.has_ended()) continue;
    while (peer->offered || peer->link.readable())  // what it wrote before
      if (!peer->link.read() && !peer->offered) break;
    peer->gone = true;
    if (!peer->said_goodbye) end(*peer);
  }
  if (goodbyes_ > 0) bell_.ring();  // progress() ends these
}

void NativeWire::sleep(std::uint32_t ticket, engine::Clock::duration at_most) {
  std::unique_lock watch(watch_, std::defer_lock);
  if (!epoll_ || !watch.try_lock()) {
    bell_.wait(ticket, at_most);
    bell_.cancel();
    return;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (at_most - seconds).count()};
  pollfd events{epoll_.get(), POLLIN, 0};
  if (!bell_.rang_since(ticket)) ppoll(&events, 1, &timeout, nullptr);
  watch.unlock();
  bell_.cancel();
  Doorbell(connections_.own->bell()).ring();  // another sleeping thread watches the sockets from now on
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
