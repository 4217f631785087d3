// World: the ranks of this run, how they were started, and the device each one uses.
//
// detect_launch() only reads the environment: it returns rank and size before any process group exists, so that a bad
// config is rejected first. start() then starts the transport: NCCL when each rank has a GPU, else Open MPI under
// mpirun and srun, and our own shared memory, for ranks of one host, under the other launchers. A single process has
// none.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/comm/group.h"
#include "core/launch/launch_info.h"

namespace trireme::comm {

struct WorldOptions {
  std::string device = "auto";  ///< auto | cpu | cuda
  /// The longest that an operation may take from when it could have started: its tensors are ready, and older
  /// operations of its group are done.
  std::chrono::milliseconds timeout{600'000};
  /// The same for the meeting of the ranks, and for the first operation of each group; over NCCL, if it is the longer
  /// one, for all operations until end_first_step().
  std::chrono::milliseconds init_timeout{600'000};
  bool check = false;  ///< compare each operation between the ranks of its group before it runs
  bool bind = true;    ///< bind ranks with GPUs to cores near these: see choose_cores() in core/comm/devices.h
};

/// The CUDA devices that this process could use.
struct CudaDevices {
  int count = 0;
  std::string problem{};  ///< why there are none, although there is a driver: it, or a GPU, is too old or out of order
};
/// Asks the CUDA driver. Loads no CUDA library of LibTorch.
CudaDevices cuda_devices();
/// cuda_devices().count
int cuda_device_count();
/// Whether a device setting (auto, cpu or cuda) means CUDA. @throws ConfigError.
bool wants_cuda(const std::string& device, const CudaDevices& available);

/// One per process; not copyable. The destructor shuts the transport down in order (collective over all ranks).
class World {
 public:
  /// Collective over all ranks. @throws ConfigError (cuda requested but not available; CPU ranks on several hosts
  /// without MPI), CommError (the transport cannot start; the launcher and the transport disagree on the number of
  /// ranks).
  static std::unique_ptr<World> start(const LaunchInfo& info, const WorldOptions& options);
  virtual ~World() = default;

  [[nodiscard]] int rank() const { return info_.rank; }
  [[nodiscard]] int size() const { return info_.size; }
  [[nodiscard]] const LaunchInfo& info() const { return info_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  /// "Open MPI 4.1.4", "shared memory", "NCCL 2.28.9", "none"
  [[nodiscard]] const std::string& transport() const { return transport_; }
  /// The maximum number of ranks that use one GPU: each may fill that fraction of its memory. 1 on the CPU.
  [[nodiscard]] int ranks_per_device() const { return ranks_per_device_; }
  /// Why device = "auto" is the CPU although there is a CUDA driver (CudaDevices::problem); else "".
  [[nodiscard]] const std::string& device_problem() const { return device_problem_; }
  /// The cores that this rank was bound to at the start: "0-15 of NUMA node 0"; "" if it was not.
  [[nodiscard]] const std::string& binding() const { return binding_; }
  /// The group of all ranks, axis name "world".
  [[nodiscard]] const Group& group() const { return group_; }
  /// Makes a group of some ranks. Collective over ALL ranks of the world (every rank passes the same list); the ranks
  /// outside get an empty Group. `axis` names it in errors and in CommStats.
  virtual Group make_group(const std::vector<int>& ranks, const std::string& axis) = 0;
  /// Makes this rank's group of a partition of the world. `mine`: the list of its members, including this rank, the
  /// same on each of them. Collective over ALL ranks, at the cost of one group, because all parts are made at once.
  /// @throws CommError on every rank when members of a group pass different lists.
  virtual Group partition(const std::vector<int>& mine, const std::string& axis) = 0;
  /// To be called once, after the first step: from then on operations over NCCL have the timeout of WorldOptions,
  /// before that the longer one of the two.
  virtual void end_first_step() = 0;
  /// Ends every rank at once after an error, with this exit code. Only for apps/.
  [[noreturn]] virtual void abort(int exit_code) = 0;
  /// The calls, payload and wire bytes of this rank so far.
  [[nodiscard]] CommStats& comm_stats() const { return *comm_stats_; }

 protected:
  World(LaunchInfo info, c10::Device device, std::string transport)
      : info_(info), device_(device), transport_(std::move(transport)), comm_stats_(std::make_shared<CommStats>()) {}
  LaunchInfo info_;
  c10::Device device_;
  std::string transport_, device_problem_, binding_;
  int ranks_per_device_ = 1;
  std::shared_ptr<CommStats> comm_stats_;
  Group group_;
};

/// Warns if the ranks use the CPU although there is a CUDA driver. For whatever computes on a world's device.
void warn_of_cpu(const World& world, const Log& log);

}  // namespace trireme::comm
