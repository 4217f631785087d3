// The implementation of Group and Work: the checks, and the dispatch of a call to the backend of the tensor's device.
// Going through the c10d dispatcher would add some microseconds per call and nothing else. Private to core/comm.
#pragma once

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/trace.h"
#include "core/comm/group.h"

namespace trireme::comm {

using Tensors = std::vector<at::Tensor>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

struct Work::State {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;  ///< an entry may be null: complete
  double start_time = 0;                              ///< when it started, if it is traced; else 0
  std::string track{}, span_name{};
  std::string what;  ///< "all_reduce of group dp", for errors that are not Trireme's
  /// {copy that the backend fills, the caller's tensor}: copied back when complete.
  std::vector<std::pair<at::Tensor, at::Tensor>> copy_back;
};

/// What CommStats records for one call.
struct Payload {
  std::int64_t elements;
  std::int64_t bytes;
  double wire_factor;
};

/// Of one tensor, or of a list.
inline Payload payload(at::TensorList tensors, double wire_factor) {
  Payload sum{0, 0, wire_factor};
  for (const auto& tensor : tensors) {
    sum.elements += tensor.numel();
    sum.bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return sum;
}

struct Group::State {
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // null for a world of one
  BackendPtr cpu, cuda;                          // null where the transport does not serve that device
  bool cuda_is_nccl = false;
  std::vector<int> ranks;
  std::string axis;
  std::shared_ptr<CommStats> comm_stats;
  int rank = 0, size = 1;

  [[nodiscard]] bool alone() const { return !group; }
  [[nodiscard]] double ring() const { return static_cast<double>(size - 1) / size; }

  [[noreturn]] void refuse(const char* op, const std::string& why) const {
    throw CommError(fmt::format("{} of group {} (rank {} of {}): {}", op, axis, rank, size, why));
  }

  void check_parts(const char* op, const at::Tensor& whole, const at::Tensor& part) const {
    if (whole.numel() != part.numel() * size || whole.scalar_type() != part.scalar_type())
      refuse(op, fmt::format("the full tensor has {} elements of {}, the part {} of {}; the full tensor must be {} "
                             "times the part, of the same dtype",
                             whole.numel(), c10::toString(whole.scalar_type()), part.numel(),
                             c10::toString(part.scalar_type()), size));
  }
  void check_count(const char* op, const Tensors& list, const char* what) const {
    if (list.size() != static_cast<std::size_t>(size))
      refuse(op, fmt::format("got {} {}; expected one per rank", list.size(), what));
  }
  void check_root(const char* op, int root) const {
    if (root < 0 || root >= size) refuse(op, fmt::format("no rank {} here", root));
  }
  void check_peer(const char* op, int peer) const {
    check_root(op, peer);
    if (peer == rank) refuse(op, "the peer is this rank itself");
  }

  /// One call in progress, with the tensors in the form that the backend takes.
  struct Call {
    const State& group;
    const char* op;
    std::unique_ptr<Work::State> state = std::make_unique<Work::State>();
    BackendPtr backend;

    Call(const State& owner, const char* name, const at::Tensor& like) : group(owner), op(name) {
      backend = like.is_cuda() || !group.cpu ? group.cuda : group.cpu;
      if (!backend) group.refuse(op, fmt::format("no transport for tensors on {}", like.device().str()));
    }

    [[nodiscard]] bool by_nccl() const { return backend == group.cuda && group.cuda_is_nccl; }
    /// The options of a copy that NCCL can take: on NCCL's device, and not int16, which NCCL does not support.
    [[nodiscard]] at::TensorOptions options(const at::Tensor& tensor) const {
      return tensor.options()
          .device(*backend->getBoundDeviceId())
          .dtype(tensor.scalar_type() == at::kShort ? at::kInt : tensor.scalar_type());
    }
    /// Returns the tensor itself if the backend can take it, else a copy. NCCL takes contiguous CUDA tensors.
    at::Tensor take(const at::Tensor& tensor, bool reads, bool writes) {
      if (!by_nccl()) return tensor;
      if (tensor.is_cuda() && tensor.is_contiguous() && tensor.scalar_type() != at::kShort) return tensor;
      auto copy = at::empty(tensor.sizes(), options(tensor).memory_format(c10::MemoryFormat::Contiguous));
      if (reads) copy.copy_(tensor.detach());
      if (writes) state->copy_back.emplace_back(copy, tensor.detach());
      return copy;
    }
    at::Tensor input(const at::Tensor& tensor) { return take(tensor, true, false); }
    at::Tensor output(const at::Tensor& tensor) { return take(tensor, false, true); }
    at::Tensor in_place(const at::Tensor& tensor) { return take(tensor, true, true); }
    Tensors inputs(Tensors list) {
      for (auto& tensor : list) tensor = input(tensor);
      return list;
    }
    Tensors outputs(Tensors list) {
      for (auto& tensor : list) tensor = output(tensor);
      return list;
    }
  };

  void book(const char* op, const Payload& payload) const {
    if (comm_stats)
      comm_stats->add(axis, op, static_cast<std::uint64_t>(payload.elements), static_cast<std::uint64_t>(payload.bytes),
                      payload.wire_factor);
  }

  /// Records a call and starts it: launch(call) prepares its tensors and passes them to call.backend.
  template <class Launch>
  Work run(const char* op, const at::Tensor& like, const Payload& booked, Launch&& launch) const {
    book(op, booked);
    return start(op, like, booked.bytes, [&](Call& call) { call.state->works.push_back(launch(call)); });
  }

  /// The same without a record; launch(call) itself adds to call.state->works.
  template <class Launch>
  Work start(const char* op, const at::Tensor& like, std::int64_t bytes, Launch&& launch) const {
    Call call(*this, op, like);
    call.state->what = fmt::format("{} of group {}", op, axis);
    if (trace::on()) {
      call.state->start_time = trace::now();
      call.state->track = fmt::format("comm {}", axis);
      call.state->span_name = fmt::format("{} {:.3g} KB", op, static_cast<double>(bytes) / 1024);
    }
    try {
      launch(call);
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      throw CommError(fmt::format("{}: {}", call.state->what, error.what_without_backtrace()));
    }
    return Work(std::move(call.state));
  }

  // Calls that may return before they complete (`later`); defined beside Group's.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, bool later) const;
  Work broadcast(const at::Tensor& tensor, int root, bool later) const;
  Work all_gather_into(const at::Tensor& output, const at::Tensor& input, bool later) const;
  Work reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op, bool later) const;
  Work all_gather(const Tensors& outputs, const at::Tensor& input, bool later) const;
  Work reduce_scatter(const at::Tensor& output, const Tensors& inputs, ReduceOp op, bool later) const;
};

}  // namespace trireme::comm
