// The transport of CPU tensors as a c10d backend, called by c10d's process groups, and through them by c10d::Reducer.
//
// A collective is a direct exchange in one or two rounds (see Operation). In a group of more than a few ranks, small
// messages go along trees instead, log2(N) of them per rank (see small_messages.cpp). Floating-point reductions always
// combine the ranks in order, so all ranks get the same bits, independent of the buckets. A timeout below zero in the
// options means the group's timeout.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "core/comm/engine/engine.h"
#include "core/comm/engine/staging.h"
#include "core/comm/transport.h"

namespace trireme::comm::engine {

class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Backend(std::shared_ptr<Engine> engine, std::shared_ptr<const Channel> channel, const OperationSettings& settings);

  const std::string getBackendName() const override { return engine_->wire().name(); }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { first_timeout_ = timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  struct Call;
  WorkPtr point_to_point(c10d::OpType type, const char* name, Tensors& tensors, int peer, int tag);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Channel> channel_;
  /// Of the next operation.
  [[nodiscard]] std::chrono::milliseconds timeout() const {
    return sequence_ + messages_ == 0 ? first_timeout_.load() : timeout_.load();
  }

  bool check_;
  std::atomic<std::chrono::milliseconds> first_timeout_, timeout_;
  std::atomic<std::uint64_t> sequence_{0};  // number of collectives so far
  std::atomic<std::uint64_t> messages_{0};  // number of sends and receives so far
};

}  // namespace trireme::comm::engine
