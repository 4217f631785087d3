#include "core/comm/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "core/comm/seats.h"
#include "core/comm/transport.h"

namespace trireme::comm {
namespace {

class RunningWorld final : public World {
 public:
  /// Either transport may be null; a world of one has none.
  RunningWorld(const LaunchInfo& info, c10::Device device, std::string transport, std::unique_ptr<Transport> mpi,
               std::unique_ptr<Transport> nccl)
      : World(info, device, std::move(transport)), mpi_(std::move(mpi)), nccl_(std::move(nccl)) {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    group_ = make_group(all, "world");
  }

  ~RunningWorld() override {
    group_ = Group();
    nccl_.reset();
    mpi_.reset();
  }

  Group make_group(const std::vector<int>& ranks, const std::string& axis) override {
    const std::set<int> distinct(ranks.begin(), ranks.end());
    TRIREME_CHECK(
        !ranks.empty() && distinct.size() == ranks.size() && *distinct.begin() >= 0 && *distinct.rbegin() < size(),
        "group {}: ranks [{}] of a world of {}", axis, fmt::join(ranks, ", "), size());
    const bool member = distinct.count(rank()) != 0;
    if (ranks.size() == 1) return member ? Group::alone(axis, rank(), ledger_) : Group();  // no transport need know
    return join(member ? ranks : std::vector<int>(), axis);
  }

  Group partition(const std::vector<int>& mine, const std::string& axis) override {
    const std::set<int> distinct(mine.begin(), mine.end());
    TRIREME_CHECK(distinct.size() == mine.size() && distinct.count(rank()) != 0 && *distinct.begin() >= 0 &&
                      *distinct.rbegin() < size(),
                  "group {}: ranks [{}] on rank {} of a world of {}", axis, fmt::join(mine, ", "), rank(), size());
    if (mine.size() > 1) return join(mine, axis);
    (void)join({}, axis);  // others may be in larger groups
    return Group::alone(axis, rank(), ledger_);
  }

  [[noreturn]] void abort(int exit_code) override {
    if (mpi_) mpi_->abort(exit_code);
    if (nccl_) nccl_->abort(exit_code);
    std::_Exit(exit_code);
  }

 private:
  /// By NCCL alone where it runs: its groups cost MPI no message, and CPU tensors go by the device.
  Group join(const std::vector<int>& ranks, const std::string& axis) {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    const auto place = std::find(ranks.begin(), ranks.end(), rank());
    if (place != ranks.end())
      group = c10::make_intrusive<c10d::ProcessGroup>(static_cast<int>(place - ranks.begin()),
                                                      static_cast<int>(ranks.size()));
    if (nccl_)
      nccl_->join(group.get(), ranks, axis);
    else if (mpi_)
      mpi_->join(group.get(), ranks, axis);
    if (!group) return {};
    group->setGroupName(fmt::format("{}_{}", axis, groups_++));
    group->setGroupDesc(axis);
    return {group, ranks, axis, ledger_};
  }

  std::unique_ptr<Transport> mpi_, nccl_;
  int groups_ = 0;
};

/// NCCL over all ranks, rank 0's address spread by MPI where that runs.
std::unique_ptr<Transport> start_nccl(const CudaLibrary& library, const LaunchInfo& info, const WorldOptions& options,
                                      c10::Device device, Transport* mpi) {
  NcclOptions nccl{.timeout = options.timeout, .device = device, .share_address = {}};
  if (mpi != nullptr)
    nccl.share_address = [mpi](const Address& mine) {
      const auto of_rank_0 = mpi->decide(fmt::format("{} {}", mine.port, mine.host),
                                         [](const std::vector<std::string>& said) { return said[0]; });
      const auto space = of_rank_0.find(' ');
      return Address{of_rank_0.substr(space + 1), std::atoi(of_rank_0.c_str())};
    };
  return library.start_nccl(info, nccl);
}

/// @throws ConfigError on every rank.
Seating agree_on_way(Transport& transport, const Seat& mine) {
  const std::string refused = "refused: ";
  const auto answer = transport.decide(mine.text(), [&](const std::vector<std::string>& said) {
    std::vector<Seat> seats;
    for (const auto& text : said) seats.push_back(Seat::parse(text));
    try {
      return choose_way(seats).text();
    } catch (const ConfigError& error) {
      return refused + error.what();
    }
  });
  if (answer.starts_with(refused)) throw ConfigError(answer.substr(refused.size()));
  return Seating::parse(answer);
}

std::unique_ptr<World> start_torchrun(const CudaLibrary* library, const LaunchInfo& info, const WorldOptions& options,
                                      c10::Device device, const Seat& seat) {
  if (library == nullptr)
    throw ConfigError(
        fmt::format("torchrun started {} ranks on CPUs, but gives them no way to reach each other that "
                    "Trireme uses; start them with: trireme train ... --ranks {}, or mpirun -n {}",
                    info.size, info.size, info.size));
  auto nccl = start_nccl(*library, info, options, device, nullptr);
  const auto seating = agree_on_way(*nccl, seat);
  if (seating.way != Way::nccl)
    throw ConfigError(
        fmt::format("under torchrun {}, but NCCL needs one GPU per rank; start one rank per GPU, or use mpirun "
                    "(communication then goes through host memory)",
                    seating.shared));
  auto name = nccl->name();
  return std::make_unique<RunningWorld>(info, device, std::move(name), nullptr, std::move(nccl));
}

}  // namespace

std::unique_ptr<World> World::start(const LaunchInfo& info, const WorldOptions& options) {
  const int available = options.device == "cpu" ? 0 : cuda_device_count();
  const bool cuda = wants_cuda(options.device, available);
  const auto device = cuda ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(info.local_rank % available))
                           : c10::Device(c10::kCPU);
  // Before anything asks LibTorch about CUDA: its answer "none" would be remembered.
  std::optional<CudaLibrary> library;
  Seat seat{host_identity(), ""};
  if (cuda) {
    library = CudaLibrary::load();
    seat.device = library->use(device);  // whichever way its tensors go
  }
  if (info.size == 1) return std::make_unique<RunningWorld>(info, device, "none", nullptr, nullptr);
  if (info.launcher == Launcher::torchrun)
    return start_torchrun(library ? &*library : nullptr, info, options, device, seat);

  auto mpi = start_mpi(info, options.timeout);
  const auto seating = options.device == "cpu" ? Seating() : agree_on_way(*mpi, seat);
  auto name = mpi->name();
  std::unique_ptr<Transport> nccl;
  if (seating.way == Way::staged) {
    name += fmt::format(" through host memory: {}", seating.shared);
    mpi->stage_cuda(device);
  } else if (seating.way == Way::nccl) {
    nccl = start_nccl(*library, info, options, device, mpi.get());
    name = nccl->name();
  }
  return std::make_unique<RunningWorld>(info, device, std::move(name), std::move(mpi), std::move(nccl));
}

}  // namespace trireme::comm
