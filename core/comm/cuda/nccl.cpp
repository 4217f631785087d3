// libtrireme_cuda.so: NCCL through LibTorch's ProcessGroupNCCL. World::start loads it when CUDA devices are used, and
// with it the libraries that it links (LibTorch's CUDA library, NCCL).
//
// Errors of a peer and timeouts are detected by ProcessGroupNCCL's own watchdog thread, not by wait(), which only
// orders streams.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/base/error.h"
#include "core/comm/cuda/recorded_nccl.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/transport.h"

namespace trireme::comm {
namespace {

std::string use(c10::Device device) {
  c10::cuda::set_device(device.index());
  const auto& properties = *at::cuda::getDeviceProperties(device.index());
  return fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
}

class NcclTransport final : public Transport {
 public:
  explicit NcclTransport(const NcclOptions& options) : options_(options) { flight::note_device_operations(); }

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
    // NCCL counts from when an operation is queued, and in the first step the ranks load kernels and plans between
    // them.
    settings->timeout =
        in_first_step_ ? std::max(options_.settings.first, options_.settings.steady) : options_.settings.steady;
    settings->group_name = prefix;
    settings->group_desc = axis;
    settings->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    try {
      auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, options_.store);
      auto check =
          options_.settings.check ? std::make_unique<StoreCheck>(store, axis, group->getRank(), ranks) : nullptr;
      if (!poll_) poll_ = std::make_shared<CompletionPoll>(options_.device);
      auto backend = c10::make_intrusive<RecordedNccl>(std::move(store), group->getRank(), group->getSize(), settings,
                                                       flight::join(axis, ranks, static_cast<std::uint64_t>(made) + 1),
                                                       poll_, std::move(check));
      group->setBoundDeviceId(options_.device);
      group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
      group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
      backends_.push_back(std::move(backend));
    } catch (const c10::Error& error) {
      throw CommError(fmt::format("cannot create NCCL group {}: {}", axis, error.what_without_backtrace()));
    }
  }

  void end_first_step() override {
    in_first_step_ = false;
    for (const auto& backend : backends_) backend->setTimeout(options_.settings.steady);
  }

  void abort(int) noexcept override {}  // torchrun's agent or mpirun ends the other ranks

 private:
  NcclOptions options_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::shared_ptr<CompletionPoll> poll_;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroupNCCL>> backends_;
  int groups_ = 0;
  bool in_first_step_ = true;
};

}  // namespace
}  // namespace trireme::comm

extern "C" {
// libtrireme looks it up by name: see cuda/load.cpp.
__attribute__((visibility("default"))) extern const trireme::comm::CudaLibrary::Entry trireme_cuda_entry;
const trireme::comm::CudaLibrary::Entry trireme_cuda_entry{
    [](c10::Device device) { return trireme::comm::use(device); },
    [](const trireme::comm::NcclOptions& options) -> std::unique_ptr<trireme::comm::Transport> {
      return std::make_unique<trireme::comm::NcclTransport>(options);
    }};
}
