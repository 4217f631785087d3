#include "core/comm/native/sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::comm::native {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// The first thing on a connection.
struct Hello {
  Token token;  // of the rank that accepts
  std::int32_t rank;
  std::int32_t unused = 0;
};

/// Null when the name is unknown.
Addresses resolve(const std::string& host, const std::string& port, int type) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = type;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// This host's address on the way to MASTER_ADDR: connecting a datagram socket sends nothing and chooses the address.
std::string address_towards_master(bool beside_rank_0) {
  if (const auto given = environment("TRIREME_ADDRESS"); !given.empty()) return given;
  const auto master = environment("MASTER_ADDR");
  const auto addresses = resolve(master, environment("MASTER_PORT"), SOCK_DGRAM);
  for (const auto* at = addresses.get(); at != nullptr; at = at->ai_next) {
    const FileDescriptor probe(socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST] = {};
    if (connect(probe.get(), at->ai_addr, at->ai_addrlen) != 0 ||
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    // Rank 0's host may know its own name as a loopback address, but the other ranks reach it by MASTER_ADDR.
    return beside_rank_0 && is_loopback(own) ? master : text;
  }
  throw CommError(
      fmt::format("MASTER_ADDR={}: no way to that host; set TRIREME_ADDRESS to the address at which the "
                  "other hosts reach this one",
                  master));
}

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
}

bool wait_for(int fd, short events, Clock::time_point until) {
  pollfd waiting{fd, events, 0};
  int ready = 0;
  do ready = poll(&waiting, 1, milliseconds_until(until));
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

/// errno of a connection attempt; 0 when it succeeded.
int try_connect(const FileDescriptor& fd, const addrinfo& to, Clock::time_point until) {
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(fd.get(), POLLOUT, until)) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

FileDescriptor connect_to(const RemoteRank& to, int own_rank, Clock::time_point until) {
  const auto space = to.address.find(' ');
  const auto host = to.address.substr(0, space), port = to.address.substr(space + 1);
  int error = EHOSTUNREACH;
  do {
    const auto addresses = resolve(host, port, SOCK_STREAM);
    for (const auto* at = addresses.get(); at != nullptr; at = at->ai_next) {
      FileDescriptor made(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      error = made ? try_connect(made, *at, until) : errno;
      if (error == EMFILE || error == ENFILE) throw CommError(no_descriptor("cannot open a socket", error));
      const Hello hello{to.token, own_rank};
      if (error == 0 && send(made.get(), &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) return made;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < until);
  throw CommError(
      fmt::format("cannot connect to rank {} on host {} at {}:{}: {}; is the port blocked, or is this the "
                  "wrong network (TRIREME_ADDRESS sets the address on that host)?",
                  to.rank, to.host, host, port, std::strerror(error)));
}

/// The rank at the other end of an accepted connection; -1 when it is none of ours.
int read_hello(const FileDescriptor& from, const Token& own_token, Clock::time_point until) {
  Hello hello{};
  std::size_t have = 0;
  while (have < sizeof hello) {
    const auto patience = std::min(until, Clock::now() + std::chrono::seconds(5));
    if (!wait_for(from.get(), POLLIN, patience)) return -1;
    const auto got = recv(from.get(), reinterpret_cast<char*>(&hello) + have, sizeof hello - have, 0);
    if (got <= 0) return -1;
    have += static_cast<std::size_t>(got);
  }
  return hello.token == own_token ? hello.rank : -1;
}

}  // namespace

Listener::Listener(int backlog, bool beside_rank_0) : address_(address_towards_master(beside_rank_0)) {
  // One socket for both families where the host has IPv6.
  socket_ = FileDescriptor(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage any{};
  if (socket_) {
    const int both = 0;
    setsockopt(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    any.ss_family = AF_INET6;
  } else {
    socket_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    any.ss_family = AF_INET;
  }
  if (!socket_) throw CommError(no_descriptor("cannot open a socket", errno));
  socklen_t length = any.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&any), length) != 0 ||
      listen(socket_.get(), std::max(16, backlog)) != 0 ||
      getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0)
    throw CommError(fmt::format("cannot listen for the ranks of other hosts: {}", std::strerror(errno)));
  const auto port = any.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(any).sin6_port
                                              : reinterpret_cast<const sockaddr_in&>(any).sin_port;
  address_ += fmt::format(" {}", ntohs(port));
}

std::vector<std::pair<int, FileDescriptor>> connect_remote_ranks(const Listener& listener, int own_rank,
                                                                 const Token& own_token,
                                                                 const std::vector<RemoteRank>& ranks,
                                                                 std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  std::vector<std::pair<int, FileDescriptor>> made;
  std::vector<RemoteRank> missing;
  for (const auto& rank : ranks) {
    if (rank.rank < own_rank)
      made.emplace_back(rank.rank, connect_to(rank, own_rank, until));
    else
      missing.push_back(rank);
  }
  while (!missing.empty()) {
    // Strangers that keep connecting must not prolong the wait.
    if (Clock::now() >= until || !wait_for(listener.socket(), POLLIN, until))
      throw CommError(fmt::format("rank {} on host {} did not connect within {:.3g} s; can that host reach {}?",
                                  missing[0].rank, missing[0].host, static_cast<double>(timeout.count()) / 1000,
                                  listener.address()));
    FileDescriptor accepted(accept4(listener.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted) {
      // Other errors are those of the one connection.
      const int error = errno;
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
        throw CommError(no_descriptor("cannot accept a connection", error));
      continue;
    }
    const int rank = read_hello(accepted, own_token, until);
    const auto found =
        std::find_if(missing.begin(), missing.end(), [rank](const RemoteRank& one) { return one.rank == rank; });
    if (found == missing.end()) continue;
    missing.erase(found);
    made.emplace_back(rank, std::move(accepted));
  }
  return made;
}

}  // namespace trireme::comm::native
