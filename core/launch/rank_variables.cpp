#include "core/launch/rank_variables.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/launch/process.h"

namespace trireme {

Variables rank_variables(int rank, int size, int port, const std::string& launcher, int store_fd) {
  Variables variables{{"RANK", std::to_string(rank)},
                      {"WORLD_SIZE", std::to_string(size)},
                      {"LOCAL_RANK", std::to_string(rank)},
                      {"LOCAL_WORLD_SIZE", std::to_string(size)},
                      {"GROUP_RANK", "0"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", std::to_string(port)},
                      {"TRIREME_LAUNCHER", launcher}};
  if (rank == 0) variables.emplace_back("TRIREME_STORE_FD", std::to_string(store_fd));
  return variables;
}

bool host_has_gpu() { return access("/dev/nvidiactl", F_OK) == 0; }

void set_thread_variables(std::vector<std::string>& environment, int ranks, bool on_cpu) {
  const auto set_unless_set = [&](const std::string& name, const std::string& value) {
    const auto is_it = [&](const std::string& variable) { return variable.starts_with(name + "="); };
    const bool is_set = std::any_of(environment.begin(), environment.end(), is_it);
    if (!is_set) environment.push_back(name + "=" + value);
    return !is_set;
  };
  set_unless_set("OMP_WAIT_POLICY", "passive");
  if (ranks > 1 && on_cpu && set_unless_set("OMP_NUM_THREADS", "1"))
    environment.push_back(std::string(kThreadsAreOurs) + "=1");
}

StoreSocket::StoreSocket() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* bound = reinterpret_cast<sockaddr*>(&address);
  if (!socket_ || bind(socket_.get(), bound, length) != 0 || listen(socket_.get(), SOMAXCONN) != 0 ||
      getsockname(socket_.get(), bound, &length) != 0)
    throw ConfigError(fmt::format("cannot listen on a TCP port of 127.0.0.1: {}", std::strerror(errno)));
  port_ = ntohs(address.sin_port);
  socket_ = ranks::inheritable_copy(socket_.get());
}

}  // namespace trireme
