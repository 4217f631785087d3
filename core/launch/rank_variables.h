// What our launchers (`trireme launch`, --ranks and spawn()) set for the ranks that they start on this machine:
// torchrun's variables, and the socket on which rank 0 serves the key-value store. Uses nothing of LibTorch, because
// the launcher has it too.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/file_descriptor.h"

namespace trireme {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and TRIREME_LAUNCHER, which is
/// `launcher` ("launch" or "spawn"). `port`: where rank 0 serves the store. `store_fd`: the socket that rank 0
/// inherits, as TRIREME_STORE_FD.
Variables rank_variables(int rank, int size, int port, const std::string& launcher, int store_fd);

/// Whether this host has an NVIDIA GPU with its driver. Loads no library.
bool host_has_gpu();

/// The value of OMP_NUM_THREADS that our launcher has set, because the user had set none.
inline constexpr const char* kThreadsAreOurs = "TRIREME_THREADS_ARE_OURS";

/// Sets OMP_WAIT_POLICY, and OMP_NUM_THREADS if several CPU ranks share the host. Keeps what the user has set.
void set_thread_variables(std::vector<std::string>& environment, int ranks, bool on_cpu);

/// A listening TCP socket for the store, on a free port of the loopback address. It exists before the ranks do, so no
/// other program can take its port.
class StoreSocket {
 public:
  /// @throws ConfigError
  StoreSocket();
  [[nodiscard]] int port() const { return port_; }
  /// Is closed by exec(), so only rank 0's process, which clears the flag, has it; not one of the low numbers that its
  /// script may use.
  [[nodiscard]] int descriptor() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  int port_ = 0;
};

}  // namespace trireme
