// Transport: what carries the collectives, behind one small face. World owns at most two: Open MPI (CPU tensors, and
// CUDA tensors by host staging) and NCCL (CUDA tensors). Private to core/comm.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/world.h"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace trireme::comm {

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Gives `group` a backend of this transport. Collective over the world; `group` is null on the ranks that are not in
  /// `ranks` (world ranks in group order). @throws CommError.
  virtual void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) = 0;
  /// Ends all ranks, if this transport can.
  virtual void abort(int exit_code) noexcept = 0;
};

struct MpiOptions {
  std::chrono::milliseconds timeout;
  /// Serve CUDA tensors too, through the host: when NCCL cannot.
  bool stage_cuda = false;
};

/// Starts Open MPI, or (built without it) throws a ConfigError that says so. @throws CommError.
std::unique_ptr<Transport> start_mpi(const LaunchInfo& info, const MpiOptions& options);

struct NcclOptions {
  std::chrono::milliseconds timeout;
  c10::Device device;
  /// Makes rank 0's address known to all (host, port); empty under torchrun, which sets MASTER_ADDR and MASTER_PORT.
  std::function<std::pair<std::string, int>(const std::string&, int)> share_address;
};

/// libtrireme_cuda.so, loaded when CUDA is used: it brings LibTorch's CUDA library with it. Never unloaded.
class CudaLibrary {
 public:
  /// @throws ConfigError when the library is not beside libtrireme.so or does not load.
  static CudaLibrary load();
  /// @throws CommError.
  std::unique_ptr<Transport> start_nccl(const LaunchInfo& info, const NcclOptions& options) const;

  /// What the library exports, by one C symbol.
  struct Entry {
    std::unique_ptr<Transport> (*start_nccl)(const LaunchInfo&, const NcclOptions&);
  };

 private:
  explicit CudaLibrary(const Entry* entry) : entry_(entry) {}
  const Entry* entry_;
};

}  // namespace trireme::comm
