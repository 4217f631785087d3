// RecordedNccl: ProcessGroupNCCL, with every operation in the flight record, also those of c10d::Reducer, and compared
// between the ranks first if that is asked for (WorldOptions::check). Both are in initWork(), which each operation
// calls on the way to its kernel.
//
// A send or recv is not compared, because only two ranks know of it; neither are the kind of a reduction and the root,
// which initWork() does not get.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "core/comm/flight/recorder.h"
#include "core/comm/store_check.h"

namespace trireme::comm {

/// Asks the device from time to time which of the recorded operations are complete. One per process.
class CompletionPoll {
 public:
  /// `device`: of the operations.
  explicit CompletionPoll(c10::Device device);
  ~CompletionPoll();
  CompletionPoll(const CompletionPoll&) = delete;
  CompletionPoll& operator=(const CompletionPoll&) = delete;
  void add(flight::Entry entry, std::shared_ptr<at::cuda::CUDAEvent> end);

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    flight::Entry entry;
    std::shared_ptr<at::cuda::CUDAEvent> end;
    Clock::time_point since;
  };
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<Pending> pending_;
  std::thread thread_;
};

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
                                        const std::vector<at::Tensor>& outputs, bool record) override;

  flight::GroupName name_;
  std::shared_ptr<CompletionPoll> poll_;
  std::unique_ptr<StoreCheck> check_;  // null: not asked for
};

}  // namespace trireme::comm
