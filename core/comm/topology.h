// Topology: the hosts and GPUs of the ranks, and the backend for their tensors. Rank 0 decides for all ranks.
// Private to core/comm.
#pragma once

#include <string>
#include <vector>

namespace trireme::comm {

/// One rank's machine and GPU. The GPUs of a machine that a rank can see do not show which ones the others use.
struct RankLocation {
  std::string host;
  std::string device;  ///< PCI address; "" on the CPU
  [[nodiscard]] std::string text() const { return host + '\n' + device; }
  static RankLocation parse(const std::string& text);
};

/// Identifies this machine as NCCL does: by host name and boot id. The environment variable TRIREME_HOST_IDENTITY
/// replaces it: ranks with different ones communicate over TCP (for tests, and for containers that share no processes).
std::string host_identity();

/// staged: CUDA tensors are copied through host memory and sent by the transport of CPU ranks.
enum class Backend { cpu, nccl, staged };

struct Topology {
  Backend backend = Backend::cpu;
  int ranks_per_device = 1;  ///< maximum number of ranks that share a GPU
  std::string shared{};      ///< staged: "4 ranks share 2 GPUs"
  [[nodiscard]] std::string text() const;
  static Topology parse(const std::string& text);
};

/// NCCL needs one rank per GPU; when ranks share a GPU, CUDA tensors are staged through the host.
/// @throws ConfigError when some ranks would use CUDA and others the CPU.
Topology choose_backend(const std::vector<RankLocation>& locations);

}  // namespace trireme::comm
