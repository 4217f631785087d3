// World: the ranks of this run, how they were started, and the device each one uses.
//
// detect() only reads the environment: it says rank and size before any process group exists, so that a bad config
// is refused first. start() then brings up the one transport (Open MPI, NCCL, or none for a lone process).
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/group.h"

namespace trireme::comm {

enum class Launcher { alone, mpirun, srun, torchrun };

/// What the environment says of this process.
struct LaunchInfo {
  Launcher launcher = Launcher::alone;
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string job{};  ///< the launcher's name for this run, the same on all ranks; "" where it gives none
  [[nodiscard]] std::string text() const;  ///< "mpirun, 4 ranks on 1 host"
};
LaunchInfo detect();

struct WorldOptions {
  std::string device = "auto";  ///< auto | cpu | cuda
  std::chrono::milliseconds timeout{600'000};
};

/// How many CUDA devices this process could use; loads no CUDA library of LibTorch to find out.
int cuda_device_count();
/// Whether a device setting (auto, cpu or cuda) means CUDA where so many devices are. @throws ConfigError.
bool wants_cuda(const std::string& device, int available);

/// One a process; not copyable. Its destructor tears the transport down in order (all ranks must get there).
class World {
 public:
  /// Collective over all ranks. @throws ConfigError (cuda asked for and none there; torchrun with CPU ranks),
  /// CommError (transport cannot start; the launcher said N ranks but the transport sees another number).
  static std::unique_ptr<World> start(const LaunchInfo& info, const WorldOptions& options);
  virtual ~World() = default;

  [[nodiscard]] int rank() const { return info_.rank; }
  [[nodiscard]] int size() const { return info_.size; }
  [[nodiscard]] const LaunchInfo& info() const { return info_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] const std::string& transport() const {
    return transport_;
  }  ///< "Open MPI 4.1.4", "NCCL 2.28.9", "none"
  /// How many ranks use this rank's GPU, at most: each may fill that part of its memory. 1 on the CPU.
  [[nodiscard]] int ranks_per_device() const { return ranks_per_device_; }
  /// The group of all ranks, axis name "world".
  [[nodiscard]] const Group& group() const { return group_; }
  /// A group of some ranks. Collective over ALL ranks of the world (every rank calls with the same list), the ranks
  /// outside get an empty Group. `axis` names it in errors and in the ledger.
  virtual Group make_group(const std::vector<int>& ranks, const std::string& axis) = 0;
  /// This rank's group of a partition of the world: `mine` is the list of its members (this rank is one), the same on
  /// each of them. Collective over ALL ranks, at the cost of one group: all parts are made at once.
  virtual Group partition(const std::vector<int>& mine, const std::string& axis) = 0;
  /// Ends every rank at once after an error, with this exit code: for apps/ alone.
  [[noreturn]] virtual void abort(int exit_code) = 0;
  /// Calls, payload and wire bytes of this rank so far.
  [[nodiscard]] CommStats& comm_stats() const { return *comm_stats_; }

 protected:
  World(LaunchInfo info, c10::Device device, std::string transport)
      : info_(info), device_(device), transport_(std::move(transport)), comm_stats_(std::make_shared<CommStats>()) {}
  LaunchInfo info_;
  c10::Device device_;
  std::string transport_;
  int ranks_per_device_ = 1;
  std::shared_ptr<CommStats> comm_stats_;
  Group group_;
};

}  // namespace trireme::comm
