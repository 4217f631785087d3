// Seats: where the ranks sit, and which way their tensors go. Rank 0 decides for all.
// Private to core/comm.
#pragma once

#include <string>
#include <vector>

namespace trireme::comm {

/// One rank's machine and GPU. Which of a machine's GPUs a rank can see says nothing of what the others use.
struct Seat {
  std::string host;
  std::string device;  ///< PCI address; "" on the CPU
  [[nodiscard]] std::string text() const { return host + '\n' + device; }
  static Seat parse(const std::string& text);
};

/// This machine, as NCCL tells machines apart: by name and boot.
std::string host_identity();

enum class Way { cpu, nccl, staged };

struct Seating {
  Way way = Way::cpu;
  std::string shared;  ///< staged: "4 ranks share 2 GPUs"
  [[nodiscard]] std::string text() const;
  static Seating parse(const std::string& text);
};

/// NCCL serves one rank a GPU; where ranks share one, CUDA tensors go through the host.
/// @throws ConfigError when some ranks would use CUDA and others the CPU.
Seating choose_way(const std::vector<Seat>& seats);

}  // namespace trireme::comm
