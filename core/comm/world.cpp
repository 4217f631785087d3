#include "core/comm/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/comm/devices.h"
#include "core/comm/flight/failure.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/meeting.h"
#include "core/comm/topology.h"
#include "core/comm/transport.h"

namespace trireme::comm {
namespace {

class RunningWorld final : public World {
 public:
  /// Either transport may be null; a world of one rank has none.
  RunningWorld(const LaunchInfo& info, c10::Device device, std::string transport, std::unique_ptr<Transport> cpu,
               std::unique_ptr<Transport> nccl, int ranks_per_device)
      : World(info, device, std::move(transport)), cpu_(std::move(cpu)), nccl_(std::move(nccl)) {
    ranks_per_device_ = ranks_per_device;
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    group_ = make_group(all, "world");
  }

  ~RunningWorld() override {
    group_ = Group();
    nccl_.reset();
    cpu_.reset();
    if (std::uncaught_exceptions() <= exceptions_at_start_) flight::end();
  }

  Group make_group(const std::vector<int>& ranks, const std::string& axis) override {
    const std::set<int> distinct(ranks.begin(), ranks.end());
    TRIREME_CHECK(
        !ranks.empty() && distinct.size() == ranks.size() && *distinct.begin() >= 0 && *distinct.rbegin() < size(),
        "group {}: invalid ranks [{}] in a world of {}", axis, fmt::join(ranks, ", "), size());
    const bool member = distinct.count(rank()) != 0;
    if (ranks.size() == 1) return member ? Group::alone(axis, rank(), comm_stats_) : Group();  // no transport is needed
    return join(member ? ranks : std::vector<int>(), axis);
  }

  Group partition(const std::vector<int>& mine, const std::string& axis) override {
    const std::set<int> distinct(mine.begin(), mine.end());
    TRIREME_CHECK(distinct.size() == mine.size() && distinct.count(rank()) != 0 && *distinct.begin() >= 0 &&
                      *distinct.rbegin() < size(),
                  "group {}: invalid ranks [{}] on rank {} of a world of {}", axis, fmt::join(mine, ", "), rank(),
                  size());
    if (mine.size() > 1) return join(mine, axis);
    (void)join({}, axis);  // collective, since other ranks may be in larger groups
    return Group::alone(axis, rank(), comm_stats_);
  }

  void end_first_step() override {
    if (nccl_) nccl_->end_first_step();
  }

  [[noreturn]] void abort(int exit_code) override {
    if (cpu_) cpu_->abort(exit_code);
    if (nccl_) nccl_->abort(exit_code);
    std::_Exit(exit_code);
  }

 private:
  /// Uses only NCCL if it runs: its groups need no channel of the other, and CPU tensors are copied through the device.
  Group join(const std::vector<int>& ranks, const std::string& axis) {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    const auto at = std::find(ranks.begin(), ranks.end(), rank());
    if (at != ranks.end())
      group =
          c10::make_intrusive<c10d::ProcessGroup>(static_cast<int>(at - ranks.begin()), static_cast<int>(ranks.size()));
    if (nccl_)
      nccl_->join(group.get(), ranks, axis);
    else if (cpu_)
      cpu_->join(group.get(), ranks, axis);
    if (!group) return {};
    group->setGroupName(fmt::format("{}_{}", axis, groups_++));
    group->setGroupDesc(axis);
    return {group, ranks, axis, comm_stats_};
  }

  int exceptions_at_start_ = std::uncaught_exceptions();
  std::unique_ptr<Transport> cpu_, nccl_;
  int groups_ = 0;
};

/// Returns rank 0's answer to the texts of all ranks.
using Decide = std::function<std::string(const std::string& mine, const Answer& answer)>;

/// @throws ConfigError on every rank.
Topology agree_on_topology(const Decide& decide, const RankLocation& mine, bool over_mpi) {
  const std::string refused = "refused: ";
  const auto answer = decide(mine.text(), [&](const std::vector<std::string>& said) {
    std::vector<RankLocation> locations;
    for (const auto& text : said) locations.push_back(RankLocation::parse(text));
    try {
      return choose_backend(locations, over_mpi).text();
    } catch (const ConfigError& error) {
      return refused + error.what();
    }
  });
  if (answer.starts_with(refused)) throw ConfigError(answer.substr(refused.size()));
  return Topology::parse(answer);
}

/// Under mpirun and srun, MPI shares rank 0's address.
c10::intrusive_ptr<c10d::Store> store_by(CpuTransport& cpu, const LaunchInfo& info, std::chrono::milliseconds timeout) {
  return shared_store(info, timeout, [&cpu](const Address& mine) {
    const auto of_rank_0 = cpu.decide(fmt::format("{} {}", mine.port, mine.host),
                                      [](const std::vector<std::string>& said) { return said[0]; });
    const auto space = of_rank_0.find(' ');
    return Address{of_rank_0.substr(space + 1), std::atoi(of_rank_0.c_str())};
  });
}

/// Binds this process near its GPU. Returns World::binding().
std::string bind_near_gpu(const LaunchInfo& info) {
  const auto binding = choose_cores(info, cuda_addresses(), installed_gpus(), affinity(), "/");
  if (binding.cores.empty() || !bind_process(binding.cores)) return "";
  return fmt::format("{} of NUMA node {}", cpu_list_text(binding.cores), binding.numa_node);
}

}  // namespace

void warn_of_cpu(const World& world, const Log& log) {
  if (!world.device_problem().empty()) log.warn("using the CPU: {}", world.device_problem());
}

std::unique_ptr<World> World::start(const LaunchInfo& info, const WorldOptions& options) {
  flight::open(info);
  flight::handle_termination(info);
  const OperationSettings settings{options.init_timeout, options.timeout, options.check};
  const bool over_mpi = info.launcher == Launcher::mpirun || info.launcher == Launcher::srun;
  if (options.device == "cpu" && !over_mpi && info.local_size < info.size)
    throw several_hosts_need_mpi(info.text(), static_cast<std::size_t>(info.size));
  const auto available = options.device == "cpu" ? CudaDevices() : cuda_devices();
  const bool cuda = wants_cuda(options.device, available);
  const auto device = cuda ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(info.local_rank % available.count))
                           : c10::Device(c10::kCPU);
  const auto binding = cuda && options.bind ? bind_near_gpu(info) : "";  // before threads of CUDA and NCCL start
  // Loaded before LibTorch is asked about CUDA, because it would cache the answer that there is none.
  const CudaLibrary* library = nullptr;
  RankLocation location{host_identity(), ""};
  if (cuda) {
    library = &load_cuda_library();
    location.device = library->use(device);  // needed for every backend
  }
  const auto made = [&](std::string transport, std::unique_ptr<Transport> cpu, std::unique_ptr<Transport> nccl,
                        int ranks_per_device) {
    auto world = std::make_unique<RunningWorld>(info, device, std::move(transport), std::move(cpu), std::move(nccl),
                                                ranks_per_device);
    world->device_problem_ = available.problem;
    world->binding_ = binding;
    return world;
  };
  if (info.size == 1) return made("none", nullptr, nullptr, 1);
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<CpuTransport> cpu;
  if (over_mpi)
    cpu = start_mpi(info, settings);
  else
    store = launcher_store(info, settings.first);
  Topology topology;
  if (options.device != "cpu" || !over_mpi)
    topology = agree_on_topology(
        [&](const std::string& mine, const Answer& answer) {
          return cpu ? cpu->decide(mine, answer)
                     : decide_by_store(*store, info.rank, info.size, "topology/", mine, answer);
        },
        location, over_mpi);
  std::unique_ptr<Transport> nccl;
  std::string name;
  if (topology.backend == Backend::nccl) {
    if (!store) store = store_by(*cpu, info, settings.first);
    nccl = library->start_nccl(
        {.settings = settings, .rank = info.rank, .size = info.size, .device = device, .store = store});
    name = nccl->name();
  } else {
    if (!cpu) cpu = start_native(info, *store, settings);
    name = cpu->name();
  }
  if (topology.backend == Backend::staged) {
    name += fmt::format(" through host memory: {}", topology.shared);
    cpu->stage_cuda(device);
  }
  return made(std::move(name), std::move(cpu), std::move(nccl), topology.ranks_per_device);
}

}  // namespace trireme::comm
