#include "core/comm/world.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
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
    const auto place = std::find(ranks.begin(), ranks.end(), rank());
    const bool member = place != ranks.end();
    if (ranks.size() == 1) {  // nothing to send: no transport need know
      auto single = Group::alone(axis, rank(), ledger_);
      return member ? single : Group();
    }
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    if (member)
      group = c10::make_intrusive<c10d::ProcessGroup>(static_cast<int>(place - ranks.begin()),
                                                      static_cast<int>(ranks.size()));
    if (mpi_) mpi_->join(group.get(), ranks, axis);
    if (nccl_) nccl_->join(group.get(), ranks, axis);
    if (!member) return {};
    group->setGroupName(fmt::format("{}_{}", axis, groups_++));
    group->setGroupDesc(axis);
    return {group, ranks, axis, ledger_};
  }

  [[noreturn]] void abort(int exit_code) override {
    if (mpi_) mpi_->abort(exit_code);
    if (nccl_) nccl_->abort(exit_code);
    std::_Exit(exit_code);
  }

 private:
  std::unique_ptr<Transport> mpi_, nccl_;
  int groups_ = 0;
};

bool wants_cuda(const std::string& device, int available) {
  if (device == "cpu") return false;
  if (device == "auto") return available > 0;
  if (device != "cuda") throw ConfigError(fmt::format("device \"{}\": it is auto, cpu or cuda", device));
  if (available == 0)
    throw ConfigError(
        "device \"cuda\", but the CUDA driver shows no device here; use \"auto\" or \"cpu\", or see "
        "CUDA_VISIBLE_DEVICES");
  return true;
}

/// NCCL over all ranks, rank 0's address spread by MPI where that runs.
std::unique_ptr<Transport> start_nccl(const CudaLibrary& library, const LaunchInfo& info, NcclOptions options,
                                      Transport* mpi) {
  if (mpi == nullptr) return library.start_nccl(info, options);
  std::vector<int> all(static_cast<std::size_t>(info.size));
  std::iota(all.begin(), all.end(), 0);
  const auto wire = c10::make_intrusive<c10d::ProcessGroup>(info.rank, info.size);
  mpi->join(wire.get(), all, "world");
  const Group group(wire, all, "world", nullptr);
  options.share_address = [&group](const std::string& host, int port) {
    auto text = at::zeros({264}, at::kChar);
    auto* chars = reinterpret_cast<char*>(text.data_ptr<std::int8_t>());
    std::snprintf(chars, 256, "%s", host.c_str());
    auto number = at::full({1}, port, at::kInt);
    group.broadcast(text, 0);
    group.broadcast(number, 0);
    return std::pair(std::string(chars), number.item<int>());
  };
  return library.start_nccl(info, options);
}

/// Under "auto" every rank decides by what it sees: they must all see the same.
void check_same_device(Transport& mpi, const LaunchInfo& info, bool cuda) {
  std::vector<int> all(static_cast<std::size_t>(info.size));
  std::iota(all.begin(), all.end(), 0);
  const auto wire = c10::make_intrusive<c10d::ProcessGroup>(info.rank, info.size);
  mpi.join(wire.get(), all, "world");
  auto with_cuda = at::full({1}, cuda ? 1 : 0, at::kInt);
  Group(wire, all, "world", nullptr).all_reduce(with_cuda);
  const int count = with_cuda.item<int>();
  if (count != 0 && count != info.size)
    throw ConfigError(
        fmt::format("{} of {} ranks would use CUDA and the others the CPU; set device to cpu, or start ranks "
                    "only where there are GPUs",
                    count, info.size));
}

}  // namespace

std::unique_ptr<World> World::start(const LaunchInfo& info, const WorldOptions& options) {
  const int available = options.device == "cpu" ? 0 : cuda_device_count();
  const bool cuda = wants_cuda(options.device, available);
  const auto device = cuda ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(info.local_rank % available))
                           : c10::Device(c10::kCPU);
  // Before anything asks LibTorch about CUDA: its answer "none" would be remembered.
  std::optional<CudaLibrary> library;
  if (cuda) library = CudaLibrary::load();
  if (info.size == 1) return std::make_unique<RunningWorld>(info, device, "none", nullptr, nullptr);

  const bool shared = cuda && info.local_size > available;  // NCCL refuses two ranks on one device
  if (info.launcher == Launcher::torchrun) {
    if (!cuda)
      throw ConfigError(
          fmt::format("torchrun started {} ranks on CPUs, but gives them no way to reach each other that "
                      "Trireme uses; start them with: trireme train ... --ranks {}, or mpirun -n {}",
                      info.size, info.size, info.size));
    if (shared)
      throw ConfigError(
          fmt::format("torchrun started {} ranks on this host for {} GPU{}, and NCCL serves one rank a GPU; start "
                      "{}, or use mpirun (Trireme then goes through the host)",
                      info.local_size, available, available == 1 ? "" : "s", available));
    auto nccl =
        start_nccl(*library, info, {.timeout = options.timeout, .device = device, .share_address = {}}, nullptr);
    auto name = nccl->name();
    return std::make_unique<RunningWorld>(info, device, std::move(name), nullptr, std::move(nccl));
  }
  auto mpi = start_mpi(info, {.timeout = options.timeout, .stage_cuda = shared});
  if (options.device == "auto") check_same_device(*mpi, info, cuda);
  auto name = mpi->name();
  if (!cuda) return std::make_unique<RunningWorld>(info, device, std::move(name), std::move(mpi), nullptr);
  if (shared) {
    name += fmt::format(" through host memory: {} ranks share {} GPU{} here", info.local_size, available,
                        available == 1 ? "" : "s");
    return std::make_unique<RunningWorld>(info, device, std::move(name), std::move(mpi), nullptr);
  }
  auto nccl =
      start_nccl(*library, info, {.timeout = options.timeout, .device = device, .share_address = {}}, mpi.get());
  name = nccl->name();
  return std::make_unique<RunningWorld>(info, device, std::move(name), std::move(mpi), std::move(nccl));
}

}  // namespace trireme::comm
