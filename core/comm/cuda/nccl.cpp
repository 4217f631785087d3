// libtrireme_cuda.so: NCCL through LibTorch's ProcessGroupNCCL. World::start loads it when CUDA devices are used, and
// with it the libraries that it links (LibTorch's CUDA library, NCCL).
//
// Errors of a peer and timeouts are detected by ProcessGroupNCCL's own watchdog thread, not by wait(), which only
// orders streams.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "core/base/device_thread.h"
#include "core/base/error.h"
#include "core/comm/fingerprint.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/partition.h"
#include "core/comm/transport.h"

namespace trireme::comm {
namespace {

std::string use(c10::Device device) {
  c10::cuda::set_device(device.index());
  const auto& properties = *at::cuda::getDeviceProperties(device.index());
  return fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
}

constexpr std::chrono::milliseconds kPoll{200};
/// An event that c10d uses again says "complete" until its new operation is in the stream.
constexpr std::chrono::seconds kYoung{1};

/// Gives access to the event at the end of an operation. A copy of a WorkNCCL, as c10d's watchdog has it too.
class WorkCopy : public c10d::ProcessGroupNCCL::WorkNCCL {
 public:
  explicit WorkCopy(const WorkNCCL& of) : WorkNCCL(of) {}
  [[nodiscard]] std::shared_ptr<at::cuda::CUDAEvent> end() const { return ncclEndEvent_; }
};

/// "nccl:all_reduce" and "nccl:_all_gather_base" are all_reduce and all_gather elsewhere.
std::string operation_name(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "all_reduce";
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::ALLGATHER_COALESCED:
      return "all_gather";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
    case c10d::OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return "all_to_all";
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::GATHER:
      return "gather";
    case c10d::OpType::SCATTER:
      return "scatter";
    case c10d::OpType::SEND:
      return "send";
    case c10d::OpType::RECV:
      return "recv";
    case c10d::OpType::COALESCED:
      return "exchange";
    case c10d::OpType::BARRIER:
      return "barrier";
    default:
      return c10d::opTypeToString(type);
  }
}

bool may_differ(c10d::OpType type) {
  return type == c10d::OpType::GATHER || type == c10d::OpType::SCATTER || type == c10d::OpType::ALLTOALL ||
         type == c10d::OpType::ALLTOALL_BASE;
}

/// Asks the device from time to time which of the recorded operations are complete. One per process.
class CompletionPoll {
 public:
  /// `device`: of the operations.
  explicit CompletionPoll(c10::Device device) : thread_(device_thread(device, [this] { run(); })) {}
  ~CompletionPoll() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void add(flight::Entry entry, std::shared_ptr<at::cuda::CUDAEvent> end) {
    const std::lock_guard lock(mutex_);
    pending_.push_back({entry, std::move(end), Clock::now()});
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    flight::Entry entry;
    std::shared_ptr<at::cuda::CUDAEvent> end;
    Clock::time_point since;
  };
  void run() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kPoll, [this] { return stopping_; })) {
      const auto now = Clock::now();
      std::erase_if(pending_, [now](Pending& each) {
        if (now - each.since < kYoung || !each.end || !each.end->isCreated() || !each.end->query()) return false;
        each.entry.completed();
        return true;
      });
      // The record keeps only the last ones.
      if (pending_.size() > flight::kOperations)
        pending_.erase(pending_.begin(), pending_.end() - static_cast<std::ptrdiff_t>(flight::kOperations));
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<Pending> pending_;
  std::thread thread_;
};

/// ProcessGroupNCCL, with every operation in the flight record, also those of c10d::Reducer, and compared between the
/// ranks first if that is asked for (WorldOptions::check). Both are in initWork(), which each operation calls on the
/// way to its kernel.
///
/// A send or recv is not compared, because only two ranks know of it; neither are the kind of a reduction and the root,
/// which initWork() does not get.
class RecordedNccl final : public c10d::ProcessGroupNCCL {
 public:
  RecordedNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options,
               flight::GroupName name, std::shared_ptr<CompletionPoll> poll, std::unique_ptr<StoreCheck> check)
      : ProcessGroupNCCL(std::move(store), rank, size, std::move(options)),
        name_(name),
        poll_(std::move(poll)),
        check_(std::move(check)) {}

 private:
  c10::intrusive_ptr<WorkNCCL> initWork(at::Device& device, int rank, c10d::OpType type, bool is_message,
                                        const char* title, const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& outputs, bool record) override {
    auto work = ProcessGroupNCCL::initWork(device, rank, type, is_message, title, inputs, outputs, record);
    const auto op = operation_name(type);
    const auto first = !inputs.empty() ? inputs.front() : (!outputs.empty() ? outputs.front() : at::Tensor());
    std::int64_t elements = 0;
    for (const auto& tensor : inputs) elements += tensor.numel();
    const auto sizes =
        first.defined() ? std::span(first.sizes().data(), first.sizes().size()) : std::span<const std::int64_t>();
    const auto* dtype = first.defined() ? c10::toString(first.scalar_type()) : "";
    const flight::Call call{.op = op.c_str(),
                            .sequence = work->getSequencenumber(),
                            .dtype = dtype,
                            .sizes = sizes,
                            .elements = elements,
                            .is_message = is_message};
    auto entry = flight::enter(name_, call);
    if (check_ && !is_message) {
      try {
        check_->compare(Fingerprint(call, may_differ(type)));
      } catch (...) {
        entry.failed();
        throw;
      }
    }
    poll_->add(entry, WorkCopy(*work).end());
    return work;
  }

  flight::GroupName name_;
  std::shared_ptr<CompletionPoll> poll_;
  std::unique_ptr<StoreCheck> check_;  // null: not asked for
};

class NcclTransport final : public Transport {
 public:
  explicit NcclTransport(const NcclOptions& options) : options_(options), agreement_(options.store->clone()) {
    flight::note_device_operations();
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
    check_partition(*agreement_, fmt::format("members/{}/", made), options_.rank, options_.size, ranks, axis);
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
  c10::intrusive_ptr<c10d::Store> agreement_;  ///< a connection of its own: waiting in it stops none of NCCL's threads
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
__attribute__((visibility("default"))) extern const trireme::comm::CudaLibrary trireme_cuda_entry;
const trireme::comm::CudaLibrary trireme_cuda_entry{
    trireme::comm::use, [](const trireme::comm::NcclOptions& options) -> std::unique_ptr<trireme::comm::Transport> {
      return std::make_unique<trireme::comm::NcclTransport>(options);
    }};
}
