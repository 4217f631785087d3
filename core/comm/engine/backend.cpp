#include "core/comm/engine/backend.h"

#include <fmt/format.h>

#include <numeric>

#include "core/comm/engine/call.h"

namespace trireme::comm::engine {
namespace {

/// Splits the rows of a tensor into consecutive parts, by the given counts or evenly.
std::vector<Piece> split_rows(const Piece& whole, const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                              int size) {
  const auto rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  const auto row_bytes = rows > 0 ? whole.bytes / static_cast<std::size_t>(rows) : 0;
  std::vector<Piece> parts;
  auto* at = whole.data;
  for (int r = 0; r < size; ++r) {
    const auto count = splits.empty() ? rows / size : splits[static_cast<std::size_t>(r)];
    const auto bytes = static_cast<std::size_t>(count) * row_bytes;
    parts.push_back({at, bytes});
    at += bytes;
  }
  return parts;
}

bool splits_fit(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size) {
  const auto rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  if (splits.empty()) return rows % size == 0;
  for (const auto count : splits)
    if (count < 0) return false;
  return splits.size() == static_cast<std::size_t>(size) &&
         std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == rows;
}

}  // namespace

Backend::Backend(std::shared_ptr<Engine> engine, std::shared_ptr<const Channel> channel,
                 const OperationSettings& settings)
    : c10d::Backend(channel->rank, channel->size),
      engine_(std::move(engine)),
      channel_(std::move(channel)),
      check_(settings.check),
      first_timeout_(settings.first),
      timeout_(settings.steady) {}

c10::intrusive_ptr<c10d::Backend::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), timeout_.load());
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Call call(*this, c10d::OpType::BROADCAST, "broadcast", options.timeout, options.asyncOp);
  call.check_one(tensors, "tensors");
  call.check_root(options.rootRank);
  const auto root = static_cast<int>(options.rootRank);
  if (rank_ == root) call.program.results.push_back(tensors[0]);
  call.broadcast(root, rank_ == root ? call.input(tensors[0]) : call.output(tensors[0]));
  return call.start();
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  Call call(*this, c10d::OpType::ALLREDUCE, "all_reduce", options.timeout, options.asyncOp);
  call.check_one(tensors, "tensors");
  call.check_reduce(tensors[0], options.reduceOp);
  call.all_reduce(call.in_place(tensors[0]), tensors[0].scalar_type(), options.reduceOp);
  return call.start();
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Call call(*this, c10d::OpType::ALLREDUCE_COALESCED, "all_reduce", options.timeout, options.asyncOp);
  for (const auto& tensor : tensors) {
    call.check_reduce(tensor, options.reduceOp);
    call.all_reduce(call.in_place(tensor), tensor.scalar_type(), options.reduceOp);
  }
  return call.start();
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call(*this, c10d::OpType::REDUCE, "reduce", options.timeout, options.asyncOp);
  call.check_one(tensors, "tensors");
  call.check_root(options.rootRank);
  call.check_reduce(tensors[0], options.reduceOp);
  const auto root = static_cast<int>(options.rootRank);
  const auto piece = rank_ == root ? call.in_place(tensors[0]) : call.input(tensors[0]);
  if (rank_ != root) call.program.results.push_back(tensors[0]);
  call.reduce_to(root, piece, tensors[0].scalar_type(), options.reduceOp);
  return call.start();
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  Call call(*this, c10d::OpType::ALLGATHER, "all_gather", options.timeout, options.asyncOp);
  call.check_one(inputs, "inputs");
  if (outputs.size() != 1) call.refuse("expected one list of outputs");
  call.check_list(outputs[0], "outputs");
  const auto mine = call.input(inputs[0]);
  call.gather_all(mine, call.outputs(outputs[0]));
  return call.start();
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  // outputs[r][i]: the i-th input of rank r.
  Call call(*this, c10d::OpType::ALLGATHER_COALESCED, "all_gather", options.timeout, options.asyncOp);
  if (outputs.size() != static_cast<std::size_t>(size_)) call.refuse("expected one list of outputs per rank");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors column;
    for (const auto& list : outputs) {
      if (list.size() != inputs.size()) call.refuse("each list of outputs must be as long as the inputs");
      column.push_back(list[i]);
    }
    const auto mine = call.input(inputs[i]);
    call.gather_all(mine, call.outputs(column));
  }
  return call.start();
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  Call call(*this, c10d::OpType::_ALLGATHER_BASE, "all_gather", options.timeout, options.asyncOp);
  if (outputs.size() != inputs.size()) call.refuse("expected as many outputs as inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    call.check_parts("output", outputs[i], "input", inputs[i]);
    const auto mine = call.input(inputs[i]);
    call.gather_all(mine, call.cut(call.output(outputs[i]), outputs[i].element_size()));
  }
  return call.start();
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  Call call(*this, c10d::OpType::GATHER, "gather", options.timeout, options.asyncOp);
  call.check_one(inputs, "inputs");
  call.check_root(options.rootRank);
  const auto root = static_cast<int>(options.rootRank);
  const auto mine = call.input(inputs[0]);
  std::vector<Piece> from;
  if (rank_ == root) {
    if (outputs.size() != 1) call.refuse("expected one list of outputs");
    call.check_list(outputs[0], "outputs");
    from = call.outputs(outputs[0]);
  }
  call.exchange_with_root(root, mine, from, /*gathers=*/true);
  return call.start();
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  Call call(*this, c10d::OpType::SCATTER, "scatter", options.timeout, options.asyncOp);
  call.check_one(outputs, "outputs");
  call.check_root(options.rootRank);
  const auto root = static_cast<int>(options.rootRank);
  const auto mine = call.output(outputs[0]);
  std::vector<Piece> to;
  if (rank_ == root) {
    if (inputs.size() != 1) call.refuse("expected one list of inputs");
    call.check_list(inputs[0], "inputs");
    to = call.inputs(inputs[0]);
  }
  call.exchange_with_root(root, mine, to, /*gathers=*/false);
  return call.start();
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  Call call(*this, c10d::OpType::REDUCE_SCATTER, "reduce_scatter", options.timeout, options.asyncOp);
  call.check_one(outputs, "outputs");
  if (inputs.size() != 1) call.refuse("expected one list of inputs");
  call.check_list(inputs[0], "inputs");
  call.check_reduce(outputs[0], options.reduceOp);
  for (const auto& input : inputs[0])
    if (input.scalar_type() != outputs[0].scalar_type()) call.refuse("inputs and output must have the same dtype");
  const auto parts = call.inputs(inputs[0]);
  call.reduce_parts(parts, call.output(outputs[0]), outputs[0].scalar_type(), options.reduceOp, false);
  return call.start();
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  Call call(*this, c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", options.timeout, options.asyncOp);
  if (outputs.size() != inputs.size()) call.refuse("expected as many outputs as inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    call.check_parts("input", inputs[i], "output", outputs[i]);
    call.check_reduce(outputs[i], options.reduceOp);
    const auto parts = call.cut(call.input(inputs[i]), inputs[i].element_size());
    call.reduce_parts(parts, call.output(outputs[i]), outputs[i].scalar_type(), options.reduceOp, false);
  }
  return call.start();
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  Call call(*this, c10d::OpType::ALLTOALL_BASE, "all_to_all", options.timeout, options.asyncOp);
  if (!splits_fit(output, output_splits, size_) || !splits_fit(input, input_splits, size_))
    call.refuse(
        "give one split size per rank, which add up to the number of rows; without split sizes the rows must divide "
        "evenly");
  const auto to = split_rows(call.input(input), input, input_splits, size_);
  call.exchange(to, split_rows(call.output(output), output, output_splits, size_));
  return call.start();
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  Call call(*this, c10d::OpType::ALLTOALL, "all_to_all", options.timeout, options.asyncOp);
  call.check_list(outputs, "outputs");
  call.check_list(inputs, "inputs");
  const auto to = call.inputs(inputs);
  call.exchange(to, call.outputs(outputs));
  return call.start();
}

Backend::WorkPtr Backend::point_to_point(c10d::OpType type, const char* name, Tensors& tensors, int peer, int tag) {
  Call call(*this, type, name, std::chrono::milliseconds(-1), true);
  call.check_one(tensors, "tensors");
  if (peer != kAnySource) call.check_root(peer);
  if (tag < 0 || tag >= channel_->tag_half)
    call.refuse(fmt::format("tag {}; tags are 0 to {}", tag, channel_->tag_half - 1));
  call.named_peer = peer;
  call.named_root = -1;
  call.program.sequence = messages_.fetch_add(1) + 1;
  call.program.tag = tag;
  Round round;
  if (type == c10d::OpType::SEND) {
    const auto piece = call.input(tensors[0]);
    round.sends.push_back({piece.data, piece.bytes, peer});
    call.program.results.push_back(tensors[0]);
  } else {
    const auto piece = call.output(tensors[0]);
    round.receives.push_back({piece.data, piece.bytes, peer});
  }
  call.program.rounds.push_back(std::move(round));
  return call.start();
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  return point_to_point(c10d::OpType::SEND, "send", tensors, peer, tag);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  return point_to_point(c10d::OpType::RECV, "recv", tensors, peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return point_to_point(c10d::OpType::RECVANYSOURCE, "recv", tensors, kAnySource, tag);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  Call call(*this, c10d::OpType::BARRIER, "barrier", options.timeout, options.asyncOp);
  call.gather_all({}, std::vector<Piece>(static_cast<std::size_t>(size_)));
  return call.start();
}

}  // namespace trireme::comm::engine
