// Transport: the interface to what executes collectives. World owns at most two: one of CPU tensors (Open MPI, or our
// own shared memory), which also stages CUDA tensors through host memory, and NCCL for CUDA tensors.
// Private to core/comm.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/meeting.h"
#include "core/comm/world.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace trireme::comm {

/// What holds for the operations of a group.
struct OperationSettings {
  std::chrono::milliseconds first, steady;  ///< the limits of its first one, and of the others
  bool check = false;                       ///< compare each between the ranks before it runs
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Gives `group`, this rank's group of a partition of the world, a backend of this transport. Collective over the
  /// world. `ranks`: world ranks in group order. On a rank that is in no group, `group` is null and `ranks` empty.
  /// @throws CommError, on every rank when the members of a group pass different lists.
  virtual void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) = 0;
  /// Called after the first step: operations no longer have the time of a group's first one.
  virtual void end_first_step() {}
  /// Ends all ranks, if this transport is able to.
  virtual void abort(int exit_code) noexcept = 0;
};

/// A transport of CPU tensors.
class CpuTransport : public Transport {
 public:
  /// Returns rank 0's answer to the texts `mine` of all ranks, of less than 512 bytes each. Collective over the world.
  /// @throws CommError.
  virtual std::string decide(const std::string& mine, const Answer& answer) = 0;
  /// Makes groups that are joined from now on serve CUDA tensors of this device too, through host memory. Used
  /// when NCCL does not serve them.
  virtual void stage_cuda(c10::Device device) = 0;
};

/// Starts Open MPI. Throws ConfigError when Trireme is built without it. @throws CommError.
std::unique_ptr<CpuTransport> start_mpi(const LaunchInfo& info, const OperationSettings& settings);
/// Starts our own transport: shared memory between the ranks, which are on one host. They meet in the store, which is
/// used only during the start. @throws CommError.
std::unique_ptr<CpuTransport> start_native(const LaunchInfo& info, c10d::Store& store,
                                           const OperationSettings& settings);

struct NcclOptions {
  OperationSettings settings;
  int rank, size;  ///< of the world
  c10::Device device;
  c10::intrusive_ptr<c10d::Store> store;  ///< in which the ranks meet
};

/// The functions of libtrireme_cuda.so, which it exports through one C symbol.
struct CudaLibrary {
  /// Makes a device the calling thread's current one. Returns its PCI address, by which NCCL distinguishes devices.
  std::string (*use)(c10::Device device);
  /// @throws CommError.
  std::unique_ptr<Transport> (*start_nccl)(const NcclOptions& options);
};
/// Loads it, only when CUDA is used, because it loads LibTorch's CUDA library. It is never unloaded.
/// @throws ConfigError when the library is not beside libtrireme.so or cannot be loaded.
const CudaLibrary& load_cuda_library();

}  // namespace trireme::comm
