#include "core/comm/rank_variables.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/base/error.h"

namespace trireme::comm {
namespace {

/// Binds an IPv4 or IPv6 socket (which serves IPv4 too) and listens. Returns false with errno on failure.
bool listen_for_store(int socket, int family, bool this_host_only, int port) {
  const int on = 1, off = 0;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int bound = -1;
  if (family == AF_INET6) {
    setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<in_port_t>(port));
    bound = bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(this_host_only ? INADDR_LOOPBACK : INADDR_ANY);
    address.sin_port = htons(static_cast<in_port_t>(port));
    bound = bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  return bound == 0 && listen(socket, SOMAXCONN) == 0;
}

int store_port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

Variables rank_variables(const RankPlace& place, const StoreAddress& store, const std::string& launcher, int store_fd) {
  Variables variables{{"RANK", std::to_string(place.rank)},
                      {"WORLD_SIZE", std::to_string(place.size)},
                      {"LOCAL_RANK", std::to_string(place.local_rank)},
                      {"LOCAL_WORLD_SIZE", std::to_string(place.local_size)},
                      {"GROUP_RANK", std::to_string(place.host)},
                      {"MASTER_ADDR", store.host},
                      {"MASTER_PORT", std::to_string(store.port)},
                      {"TRIREME_LAUNCHER", launcher}};
  if (place.rank == 0 && store_fd >= 0) variables.emplace_back("TRIREME_STORE_FD", std::to_string(store_fd));
  return variables;
}

bool host_has_gpu() { return access("/dev/nvidiactl", F_OK) == 0; }

Variables thread_variables(int local_size, bool on_cpu, const std::vector<std::string>& environment) {
  const auto is_set = [&](std::string_view name) {
    return std::any_of(environment.begin(), environment.end(), [&](const std::string& variable) {
      return variable.starts_with(name) && variable.substr(name.size()).starts_with("=");
    });
  };
  Variables variables;
  if (!is_set("OMP_WAIT_POLICY")) variables.emplace_back("OMP_WAIT_POLICY", "passive");
  if (local_size > 1 && on_cpu && !is_set("OMP_NUM_THREADS")) variables.emplace_back("OMP_NUM_THREADS", "1");
  return variables;
}

StoreSocket::StoreSocket(bool this_host_only, int port) {
  for (const int family : {AF_INET6, AF_INET}) {  // a container may have no IPv6
    if (this_host_only && family == AF_INET6) continue;
    socket_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ >= 0 && listen_for_store(socket_, family, this_host_only, port)) {
      port_ = store_port_of(socket_);
      return;
    }
    const int error = errno;
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
    errno = error;
  }
  throw ConfigError(port == 0
                        ? fmt::format("cannot listen on a TCP port: {}", std::strerror(errno))
                        : fmt::format("MASTER_PORT={}: {}; unset it to use any free port", port, std::strerror(errno)));
}

StoreSocket::~StoreSocket() {
  if (socket_ >= 0) close(socket_);
}

}  // namespace trireme::comm
