#include "core/comm/cuda/recorded_nccl.h"

#include <c10/core/ScalarType.h>

#include "core/base/device_thread.h"

namespace trireme::comm {
namespace {

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

}  // namespace

CompletionPoll::CompletionPoll(c10::Device device) : thread_(device_thread(device, [this] { run(); })) {}

CompletionPoll::~CompletionPoll() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CompletionPoll::add(flight::Entry entry, std::shared_ptr<at::cuda::CUDAEvent> end) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({entry, std::move(end), Clock::now()});
}

void CompletionPoll::run() {
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

c10::intrusive_ptr<c10d::ProcessGroupNCCL::WorkNCCL> RecordedNccl::initWork(
    at::Device& device, int rank, c10d::OpType type, bool is_message, const char* title,
    const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, bool record) {
  auto work = ProcessGroupNCCL::initWork(device, rank, type, is_message, title, inputs, outputs, record);
  const auto op = operation_name(type);
  const auto first = !inputs.empty() ? inputs.front() : (!outputs.empty() ? outputs.front() : at::Tensor());
  std::int64_t elements = 0;
  for (const auto& tensor : inputs) elements += tensor.numel();
  const auto sizes =
      first.defined() ? std::span(first.sizes().data(), first.sizes().size()) : std::span<const std::int64_t>();
  const auto* dtype = first.defined() ? c10::toString(first.scalar_type()) : "";
  const auto entry = flight::enter(name_, {.op = op.c_str(),
                                           .sequence = work->getSequencenumber(),
                                           .dtype = dtype,
                                           .sizes = sizes,
                                           .elements = elements,
                                           .is_message = is_message});
  if (check_ && !is_message) {
    Fingerprint own;
    own.set_op(op);
    own.set_dtype(dtype);
    own.set_sizes(sizes);
    own.elements = elements;
    own.sequence = work->getSequencenumber();
    own.uneven = may_differ(type) ? 1 : 0;
    try {
      check_->compare(own);
    } catch (...) {
      auto failed = entry;
      failed.failed();
      throw;
    }
  }
  poll_->add(entry, WorkCopy(*work).end());
  return work;
}

}  // namespace trireme::comm
