#include "core/comm/meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace trireme::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr tcp_store(const Address& address, const c10d::TCPStoreOptions& options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(address.host, options);
  } catch (const c10::Error& error) {
    throw CommError(
        fmt::format("the ranks could not meet at {}:{} within {:.3g} s; does rank 0 run, and is this address "
                    "its own? ({})",
                    address.host, address.port, static_cast<double>(options.timeout.count()) / 1000,
                    error.what_without_backtrace()));
  }
}

std::optional<int> port_number(const std::string& text) {
  const auto number = text::integer(text);
  return number >= 1 && number <= 65535 ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

/// @throws ConfigError.
Address launcher_address() {
  const auto host = environment("MASTER_ADDR"), port = environment("MASTER_PORT");
  const auto number = port_number(port);
  if (host.empty() || !number)
    throw ConfigError(
        fmt::format("MASTER_ADDR=\"{}\", MASTER_PORT=\"{}\": the launcher sets both to rank 0's address; start with "
                    "torchrun or `trireme launch`",
                    host, port));
  return {host, *number};
}

int port_of(int listening) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  getsockname(listening, reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

/// Whether a descriptor is a socket that listens on this port.
bool listens_on(int fd, int port) {
  int listens = 0;
  socklen_t length = sizeof listens;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0 && port_of(fd) == port;
}

/// The listening socket that rank 0's launcher passed, if any. Processes that this one starts do not inherit it.
/// @throws ConfigError.
std::optional<int> passed_socket(int port) {
  const auto text = environment("TRIREME_STORE_FD");
  if (text.empty()) return std::nullopt;
  const int fd = std::atoi(text.c_str());
  if (fd < 3 || !listens_on(fd, port) || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    throw ConfigError(
        fmt::format("TRIREME_STORE_FD={}: no socket that listens on port {}; only the launcher sets it. A wrapper "
                    "program that starts the rank must pass the descriptor on; elsewhere, unset the variable",
                    text, port));
  return fd;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// A socket that listens at this address alone. None where that is not possible: the name is not one of this host, or
/// it is the loopback address, and ranks run on other hosts.
std::optional<int> listen_at(const Address& address, const LaunchInfo& info) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found) != 0)
    return std::nullopt;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  for (const auto* each = found; each != nullptr; each = each->ai_next) {
    if (is_loopback(*each->ai_addr) && info.local_size < info.size) continue;
    FileDescriptor made(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;  // a restart takes the port of the attempt before it
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(made.get(), each->ai_addr, each->ai_addrlen) == 0 && listen(made.get(), SOMAXCONN) == 0)
      return made.release();
    if (errno == EADDRINUSE) break;  // the other ranks would come to whoever has it
  }
  return std::nullopt;
}

/// Serves the store until the process ends: when this rank's World is gone, others may already start their next one.
StorePtr serve_launcher_store(const LaunchInfo& info, const Address& address, c10d::TCPStoreOptions options) {
  static const StorePtr served = [&] {
    options.isServer = true;
    options.masterListenFd = passed_socket(address.port);
    if (!options.masterListenFd) options.masterListenFd = listen_at(address, info);
    return tcp_store(address, options);
  }();
  return served;
}

/// For rank 0: the ranks whose texts are missing.
std::string absent_ranks(c10d::Store& store, int size, const std::string& key) {
  std::vector<int> absent;
  for (int other = 1; other < size; ++other)
    if (!store.check({key + std::to_string(other)})) absent.push_back(other);
  return absent.empty() ? "a rank" : fmt::format("rank {}", fmt::join(absent, ", rank "));
}

/// Names the ranks that let rank 0 wait: the launcher, or the user, may not have started them.
void report_absent_ranks(c10d::Store& store, int size, const std::string& key, std::chrono::milliseconds silence) {
  if (store.getTimeout() <= silence) return;
  std::vector<std::string> keys;
  for (int other = 1; other < size; ++other) keys.push_back(key + std::to_string(other));
  try {
    store.wait(keys, silence);
  } catch (const c10::Error&) {
    Log().note("waiting for {} of {} to arrive", absent_ranks(store, size, key), size);
  }
}

std::string decide_in(c10d::Store& store, int rank, int size, const std::string& key, const std::string& mine,
                      const Answer& answer, std::chrono::milliseconds silence) {
  const auto bytes = [](const std::string& text) { return std::vector<std::uint8_t>(text.begin(), text.end()); };
  const auto read = [&](const std::string& name) {
    const auto value = store.get(key + name);
    return std::string(value.begin(), value.end());
  };
  std::string decided;
  if (rank == 0) {
    std::vector<std::string> said{mine};
    report_absent_ranks(store, size, key, silence);
    for (int other = 1; other < size; ++other) said.push_back(read(std::to_string(other)));
    decided = answer(said);
    store.set(key + "answer", bytes(decided));
  } else {
    store.set(key + std::to_string(rank), bytes(mine));
    decided = read("answer");
  }
  if (store.add(key + "read", 1) == size) store.set(key + "all", std::vector<std::uint8_t>{1});
  if (rank == 0) store.wait({key + "all"});
  return decided;
}

}  // namespace

Address address_of_rank_0(const LaunchInfo& info) {
  auto host = environment("MASTER_ADDR");
  if (host.empty()) host = info.local_size < info.size ? host_name() : "127.0.0.1";
  const auto port = environment("MASTER_PORT");
  if (port.empty()) return {host, 0};
  const auto number = port_number(port);
  if (!number)
    throw ConfigError(
        fmt::format("MASTER_PORT={}: expected a port number from 1 to 65535; unset it to use any free port", port));
  return {host, *number};
}

StorePtr launcher_store(const LaunchInfo& info, std::chrono::milliseconds timeout) {
  static std::atomic<int> calls{0};
  const auto address = launcher_address();
  const c10d::TCPStoreOptions options{
      .port = static_cast<std::uint16_t>(address.port), .waitWorkers = false, .timeout = timeout};
  // Ranks that were started below torchrun, by another launcher, inherit its variables.
  const bool torchrun = info.launcher == Launcher::torchrun;
  const bool agent_serves = torchrun && environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const bool serves = info.rank == 0 && !agent_serves;
  auto store = serves ? serve_launcher_store(info, address, options) : tcp_store(address, options);
  // A restart of the same job must not read the keys of the previous run.
  auto restarts = torchrun ? environment("TORCHELASTIC_RESTART_COUNT") : "";
  if (restarts.empty()) restarts = "0";
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("trireme/{}/{}", restarts, calls++), std::move(store));
}

StorePtr shared_store(const LaunchInfo& info, std::chrono::milliseconds timeout,
                      const std::function<Address(const Address&)>& share_address) {
  c10d::TCPStoreOptions options{.isServer = info.rank == 0, .waitWorkers = false, .timeout = timeout};
  if (info.rank == 0) {
    auto address = address_of_rank_0(info);
    options.masterListenFd = listen_at(address, info);
    if (options.masterListenFd) address.port = port_of(*options.masterListenFd);
    options.port = static_cast<std::uint16_t>(address.port);
    auto served = tcp_store({options.masterListenFd ? address.host : "127.0.0.1", address.port}, options);
    address.port = static_cast<c10d::TCPStore&>(*served).getPort();
    share_address(address);
    return served;
  }
  const auto address = share_address({});
  options.port = static_cast<std::uint16_t>(address.port);
  return tcp_store(address, options);
}

std::string decide_by_store(c10d::Store& store, int rank, int size, const std::string& key, const std::string& mine,
                            const Answer& answer, std::chrono::milliseconds silence) {
  try {
    return decide_in(store, rank, size, key, mine, answer, silence);
  } catch (const c10::Error& error) {
    if (rank != 0)
      throw CommError(
          fmt::format("the ranks did not all meet: rank 0 did not answer, perhaps because another rank is "
                      "missing ({})",
                      error.what_without_backtrace()));
    std::string who = "a rank";
    try {
      who = absent_ranks(store, size, key);
    } catch (const c10::Error&) {
      // The store is gone; the first error says why.
    }
    throw CommError(fmt::format("the ranks did not all meet: {} of {} did not arrive within {:.3g} s ({})", who, size,
                                static_cast<double>(store.getTimeout().count()) / 1000,
                                error.what_without_backtrace()));
  }
}

}  // namespace trireme::comm
