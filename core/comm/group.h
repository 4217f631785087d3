// Group: a set of ranks that communicate. It is a small value type around a c10d::ProcessGroup. A group of one rank is
// valid in every call and sends nothing. All calls are collective over the group, in the same order on each of its
// ranks.
//
// Tensors: dense, on the CPU or the group's device, of a dtype in {float64, float32, float16, bfloat16, int64, int32,
// int16, int8, uint8, bool}; non-contiguous tensors are copied. Root and peer are ranks of the GROUP.
// On CUDA, a call is ordered after the work on the current stream, and wait() orders the current stream after it:
// neither blocks the host (except through host staging).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "core/comm/comm_stats.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace trireme::comm {

enum class ReduceOp { sum, avg, min, max, product };

/// An asynchronous operation. It owns its tensors until wait(), which throws CommError with op, group and sequence
/// number. The destructor waits if wait() was not called (but not while an exception unwinds, when a peer may never
/// answer).
class [[nodiscard]] Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  void wait();
  [[nodiscard]] bool done() const;

  struct State;  // private to core/comm
  explicit Work(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

/// A part of Group::exchange_async().
struct Transfer {
  at::Tensor tensor;
  int peer;  ///< rank of the group
};

class Group {
 public:
  /// An empty group, for a rank that is not a member. valid() is false.
  Group();
  /// A group that consists of this process only.
  static Group alone(const std::string& axis, int world_rank, std::shared_ptr<CommStats> comm_stats);
  /// Wraps a process group; `ranks` are world ranks in group order.
  Group(c10::intrusive_ptr<c10d::ProcessGroup> group, std::vector<int> ranks, std::string axis,
        std::shared_ptr<CommStats> comm_stats);

  [[nodiscard]] bool valid() const;
  [[nodiscard]] int rank() const;  ///< of this process in the group
  [[nodiscard]] int size() const;
  [[nodiscard]] const std::string& axis() const;
  [[nodiscard]] const std::vector<int>& ranks() const;  ///< world ranks, in group order

  // In place. *_async return at once; the tensor must not be touched before wait().
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum) const;
  Work all_reduce_async(at::Tensor tensor, ReduceOp op = ReduceOp::sum) const;
  void reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum) const;
  void broadcast(at::Tensor tensor, int root) const;
  Work broadcast_async(at::Tensor tensor, int root) const;
  /// output: any shape of N * numel(input) elements; its r-th part is rank r's input.
  void all_gather_into(at::Tensor output, at::Tensor input) const;
  Work all_gather_into_async(at::Tensor output, at::Tensor input) const;
  /// Uneven pieces: outputs[r] has the shape of rank r's input.
  void all_gather(std::vector<at::Tensor> outputs, at::Tensor input) const;
  Work all_gather_async(std::vector<at::Tensor> outputs, at::Tensor input) const;
  /// input: N * numel(output) elements; this rank gets the reduction of the rank-th part.
  void reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum) const;
  Work reduce_scatter_into_async(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum) const;
  void reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op = ReduceOp::sum) const;
  Work reduce_scatter_async(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op = ReduceOp::sum) const;
  /// outputs: N tensors on the root, empty elsewhere.
  void gather(std::vector<at::Tensor> outputs, at::Tensor input, int root) const;
  /// inputs: N tensors on the root, empty elsewhere.
  void scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root) const;
  void all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) const;
  void send(at::Tensor tensor, int peer, int tag = 0) const;
  Work send_async(at::Tensor tensor, int peer, int tag = 0) const;
  void recv(at::Tensor tensor, int peer, int tag = 0) const;
  Work recv_async(at::Tensor tensor, int peer, int tag = 0) const;
  /// Sends and receives several tensors as one operation: on NCCL one kernel, in which both directions run at the same
  /// time, on the group's own connections (send() and recv() make connections of their own for each pair of ranks).
  /// On NCCL, the first operation of a group may be an exchange only if all of its ranks take part.
  Work exchange_async(std::vector<Transfer> sends, std::vector<Transfer> receives, int tag = 0) const;
  void barrier() const;

  /// For direct users of c10d (c10d::Reducer). Null for a group of one rank and for an empty group.
  [[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> process_group() const;

 private:
  struct State;
  [[nodiscard]] const State& state() const;  // throws LogicError for an empty group
  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
