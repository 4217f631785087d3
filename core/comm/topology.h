// Topology: the hosts and GPUs of the ranks, and the backend that carries their tensors. Rank 0 decides for all.
// Private to core/comm.
#pragma once

#include <string>
#include <vector>

namespace trireme::comm {

/// One rank's machine and GPU. Which of a machine's GPUs a rank can see says nothing of what the others use.
struct RankLocation {
  std::string host;
  std::string device;  ///< PCI address; "" on the CPU
  [[nodiscard]] std::string text() const { return host + '\n' + device; }
  static RankLocation parse(const std::string& text);
};

/// This machine, as NCCL tells machines apart: by name and boot.
std::string host_identity();

/// staged: CUDA tensors go through host memory, by Open MPI.
enum class Backend { cpu, nccl, staged };

struct Topology {
  Backend backend = Backend::cpu;
  int ranks_per_device = 1;  ///< of the GPU that most ranks share
  std::string shared{};      ///< staged: "4 ranks share 2 GPUs"
  [[nodiscard]] std::string text() const;
  static Topology parse(const std::string& text);
};

/// NCCL serves one rank a GPU; where ranks share one, CUDA tensors go through the host.
/// @throws ConfigError when some ranks would use CUDA and others the CPU.
Topology choose_backend(const std::vector<RankLocation>& locations);

}  // namespace trireme::comm
