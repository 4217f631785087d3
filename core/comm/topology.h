// Topology: the hosts and GPUs of the ranks, and the backend for their tensors. Rank 0 decides for all ranks.
// Private to core/comm.
#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"

namespace trireme::comm {

/// One rank's machine and GPU. The GPUs of a machine that a rank can see do not show which ones the others use.
struct RankLocation {
  std::string host;
  std::string device;  ///< PCI address; "" on the CPU
  [[nodiscard]] std::string text() const { return host + '\n' + device; }
  static RankLocation parse(const std::string& text);
};

/// Identifies this machine as NCCL does: by host name and boot id. The environment variable TRIREME_HOST_IDENTITY
/// replaces it (for tests).
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

/// NCCL needs one rank per GPU; when ranks share a GPU, CUDA tensors are staged through host memory. `over_mpi`: the
/// transport of CPU ranks is MPI; ours reaches only the ranks of one host.
/// @throws ConfigError when some ranks would use CUDA and others the CPU, or only MPI could connect their hosts.
Topology choose_backend(const std::vector<RankLocation>& locations, bool over_mpi);

/// The error of `ranks` ranks that only MPI could connect. `where`: what shows that they are on several hosts.
ConfigError several_hosts_need_mpi(const std::string& where, std::size_t ranks);

}  // namespace trireme::comm
