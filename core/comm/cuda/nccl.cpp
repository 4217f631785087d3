// libtrireme_cuda.so: NCCL through LibTorch's ProcessGroupNCCL. World::start loads it when CUDA devices are used, and
// with it the libraries that it links (LibTorch's CUDA library, NCCL).
//
// Errors of a peer and timeouts are detected by ProcessGroupNCCL's own watchdog thread, not by wait(), which only
// orders streams.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/comm/transport.h"

namespace trireme::comm {
namespace {

/// The store through which ranks connect. Under torchrun its agent may already serve one; under mpirun rank 0 serves
/// one, and MPI shares its address.
c10::intrusive_ptr<c10d::Store> rendezvous(const LaunchInfo& info, const NcclOptions& options) {
  c10d::TCPStoreOptions store{.isServer = info.rank == 0, .waitWorkers = false, .timeout = options.timeout};
  if (!options.share_address) {
    const auto host = environment("MASTER_ADDR"), port = environment("MASTER_PORT");
    if (host.empty() || std::atoi(port.c_str()) <= 0)
      throw ConfigError(
          fmt::format("MASTER_ADDR=\"{}\", MASTER_PORT=\"{}\": torchrun sets both; start with torchrun", host, port));
    store.port = static_cast<std::uint16_t>(std::atoi(port.c_str()));
    if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") store.isServer = false;
    // A restart of the same job must not read the keys of the previous run.
    auto restarts = environment("TORCHELASTIC_RESTART_COUNT");
    if (restarts.empty()) restarts = "0";
    return c10::make_intrusive<c10d::PrefixStore>("trireme/" + restarts,
                                                  c10::make_intrusive<c10d::TCPStore>(host, store));
  }
  if (info.rank == 0) {
    auto address = address_of_rank_0(info);
    store.port = static_cast<std::uint16_t>(address.port);
    auto served = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store);
    address.port = served->getPort();
    options.share_address(address);
    return served;
  }
  const auto [host, port] = options.share_address({});
  store.port = static_cast<std::uint16_t>(port);
  return c10::make_intrusive<c10d::TCPStore>(host, store);
}

std::string use(c10::Device device) {
  c10::cuda::set_device(device.index());
  const auto& properties = *at::cuda::getDeviceProperties(device.index());
  return fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(const LaunchInfo& info, const NcclOptions& options)
      : rank_(info.rank), size_(info.size), options_(options) {
    try {
      store_ = rendezvous(info, options);
    } catch (const c10::Error& error) {
      throw CommError(fmt::format("the ranks could not connect for NCCL: {}", error.what_without_backtrace()));
    }
    options_.share_address = nullptr;  // valid only during the start
  }

  ~NcclTransport() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    for (auto backend = backends_.rbegin(); backend != backends_.rend(); ++backend) {
      try {
        unwinding ? (*backend)->abort() : (*backend)->shutdown();
      } catch (const std::exception&) {
        // The run is ending; the operation that failed has reported the error.
      }
    }
  }

  [[nodiscard]] std::string name() const override { return "NCCL " + c10d::getNcclVersion(); }

  void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) override {
    const int made = groups_++;  // incremented on every rank, so the number is the same on all
    if (group == nullptr) return;
    const auto prefix = fmt::format("{}/{}/{}", axis, made, ranks.front());
    auto settings = c10d::ProcessGroupNCCL::Options::create();
    settings->timeout = options_.timeout;
    settings->group_name = prefix;
    settings->group_desc = axis;
    settings->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    try {
      auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                                                                 group->getRank(), group->getSize(), settings);
      group->setBoundDeviceId(options_.device);
      group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
      group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
      backends_.push_back(std::move(backend));
    } catch (const c10::Error& error) {
      throw CommError(fmt::format("cannot create NCCL group {}: {}", axis, error.what_without_backtrace()));
    }
  }

  std::string decide(const std::string& mine, const Answer& answer) override {
    try {
      return decide_by_store(*store_, rank_, size_, fmt::format("decide/{}/", decided_++), mine, answer);
    } catch (const c10::Error& error) {
      throw CommError(fmt::format("the ranks could not connect for NCCL: {}", error.what_without_backtrace()));
    }
  }

  void stage_cuda(c10::Device) override { TRIREME_CHECK(false, "NCCL does not stage tensors through host memory"); }

  void abort(int) noexcept override {}  // torchrun's agent or mpirun ends the other ranks

 private:
  int rank_, size_;
  NcclOptions options_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroupNCCL>> backends_;
  int groups_ = 0, decided_ = 0;
};

}  // namespace
}  // namespace trireme::comm

extern "C" {
// libtrireme looks it up by name: see cuda/load.cpp.
__attribute__((visibility("default"))) extern const trireme::comm::CudaLibrary::Entry trireme_cuda_entry;
const trireme::comm::CudaLibrary::Entry trireme_cuda_entry{
    [](c10::Device device) { return trireme::comm::use(device); },
    [](const trireme::comm::LaunchInfo& info,
       const trireme::comm::NcclOptions& options) -> std::unique_ptr<trireme::comm::Transport> {
      return std::make_unique<trireme::comm::NcclTransport>(info, options);
    }};
}
