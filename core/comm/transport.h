// Transport: what carries the collectives, behind one small face. World owns at most two: Open MPI (CPU tensors, and
// CUDA tensors by host staging) and NCCL (CUDA tensors). Private to core/comm.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/meeting.h"
#include "core/comm/world.h"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace trireme::comm {

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Gives `group`, this rank's group of a partition of the world, a backend of this transport. Collective over the
  /// world. `ranks`: world ranks in group order; null and empty on a rank that is in no group. @throws CommError.
  virtual void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) = 0;
  /// What rank 0 answers to what each rank says: texts of less than 512 bytes. Collective over the world.
  /// @throws CommError.
  virtual std::string decide(const std::string& mine, const Answer& answer) = 0;
  /// Groups joined from now on serve CUDA tensors too, those of this device, through the host. Where NCCL is not to
  /// serve them.
  virtual void stage_cuda(c10::Device device) = 0;
  /// Ends all ranks, if this transport can.
  virtual void abort(int exit_code) noexcept = 0;
};

/// Starts Open MPI, or (built without it) throws a ConfigError that says so. @throws CommError.
std::unique_ptr<Transport> start_mpi(const LaunchInfo& info, std::chrono::milliseconds timeout);
/// "Open MPI 4.1.4", or "no MPI".
std::string mpi_built_with();

/// To be called before anything asks CUDA's driver a question; what the user has set stays. Ranks whose messages are
/// kernels (NCCL's) want every kernel loaded at the start, because to load one may wait for those that run, and they
/// for a peer; and a queue to the device for each of their streams, so that a message does not hold up another kernel.
void set_cuda_environment(int ranks);

struct NcclOptions {
  std::chrono::milliseconds timeout;
  c10::Device device;
  /// Makes rank 0's address known to all; empty under torchrun, which sets MASTER_ADDR and MASTER_PORT.
  std::function<Address(const Address&)> share_address;
};

/// libtrireme_cuda.so, loaded when CUDA is used: it brings LibTorch's CUDA library with it. Never unloaded.
class CudaLibrary {
 public:
  /// @throws ConfigError when the library is not beside libtrireme.so or does not load.
  static CudaLibrary load();
  /// Makes a device the calling thread's current one. Returns its PCI address, by which NCCL tells devices apart.
  std::string use(c10::Device device) const;
  /// @throws CommError.
  std::unique_ptr<Transport> start_nccl(const LaunchInfo& info, const NcclOptions& options) const;

  /// What the library exports, by one C symbol.
  struct Entry {
    std::string (*use)(c10::Device);
    std::unique_ptr<Transport> (*start_nccl)(const LaunchInfo&, const NcclOptions&);
  };

 private:
  explicit CudaLibrary(const Entry* entry) : entry_(entry) {}
  const Entry* entry_;
};

}  // namespace trireme::comm
