// Group: each call, from the options for c10d to the result in a world of one rank.
#include "core/comm/group.h"

#include <tuple>

#include "core/comm/group_state.h"
#include "core/comm/parts.h"

namespace trireme::comm {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::product:
      break;
  }
  return c10d::ReduceOp::PRODUCT;
}

/// Collectives are not recorded by autograd, so they may write to parameters that require a gradient.
Work copy_into(const at::Tensor& to, const at::Tensor& from) {
  to.detach().copy_(from.detach());
  return {};
}

}  // namespace

Group::Group() = default;

Group Group::alone(const std::string& axis, int world_rank, std::shared_ptr<CommStats> comm_stats) {
  Group made;
  made.state_ = std::make_shared<State>();
  made.state_->axis = axis;
  made.state_->ranks = {world_rank};
  made.state_->comm_stats = std::move(comm_stats);
  return made;
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> group, std::vector<int> ranks, std::string axis,
             std::shared_ptr<CommStats> comm_stats)
    : state_(std::make_shared<State>()) {
  state_->rank = group->getRank();
  state_->size = group->getSize();
  TRIREME_CHECK(ranks.size() == static_cast<std::size_t>(state_->size), "group {} of {} ranks got a list of {}", axis,
                state_->size, ranks.size());
  for (const auto& device : group->getDeviceTypes()) {
    if (device.is_cpu()) state_->cpu = group->getBackend(c10::kCPU);
    if (device.is_cuda()) state_->cuda = group->getBackend(c10::kCUDA);
  }
  state_->cuda_is_nccl = state_->cuda && state_->cuda->getBackendName() == "nccl";
  state_->group = std::move(group);
  state_->ranks = std::move(ranks);
  state_->axis = std::move(axis);
  state_->comm_stats = std::move(comm_stats);
}

const Group::State& Group::state() const {
  TRIREME_CHECK(state_ != nullptr, "a call on an empty group: this rank is not in it");
  return *state_;
}

bool Group::valid() const { return state_ != nullptr; }
int Group::rank() const { return state().rank; }
int Group::size() const { return state().size; }
const std::string& Group::axis() const { return state().axis; }
const std::vector<int>& Group::ranks() const { return state().ranks; }
c10::intrusive_ptr<c10d::ProcessGroup> Group::process_group() const {
  return state_ ? state_->group : c10::intrusive_ptr<c10d::ProcessGroup>();
}

Work Group::State::all_reduce(const at::Tensor& tensor, ReduceOp op, bool later) const {
  if (alone()) return {};
  return run("all_reduce", tensor, payload(tensor, 2 * ring()), [&](Call& call) {
    Tensors tensors{call.in_place(tensor)};
    return call.backend->allreduce(tensors, {.reduceOp = to_c10d(op), .asyncOp = later});
  });
}

Work Group::State::broadcast(const at::Tensor& tensor, int root, bool later) const {
  check_root("broadcast", root);
  if (alone()) return {};
  return run("broadcast", tensor, payload(tensor, 1), [&](Call& call) {
    Tensors tensors{call.take(tensor, true, rank != root)};
    return call.backend->broadcast(tensors, {.rootRank = root, .asyncOp = later});
  });
}

Work Group::State::all_gather_into(const at::Tensor& output, const at::Tensor& input, bool later) const {
  check_parts("all_gather", output, input);
  if (alone()) return copy_into(output, input.reshape(output.sizes()));
  return run("all_gather", input, payload(output, ring()), [&](Call& call) {
    auto to = call.output(output), from = call.input(input);
    return call.backend->_allgather_base(to, from, {.asyncOp = later});
  });
}

Work Group::State::reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                       bool later) const {
  check_parts("reduce_scatter", input, output);
  if (alone()) return copy_into(output, input.reshape(output.sizes()));
  return run("reduce_scatter", input, payload(input, ring()), [&](Call& call) {
    auto to = call.output(output), from = call.input(input);
    return call.backend->_reduce_scatter_base(to, from, {.reduceOp = to_c10d(op), .asyncOp = later});
  });
}

Work Group::State::all_gather(const Tensors& outputs, const at::Tensor& input, bool later) const {
  check_count("all_gather", outputs, "outputs");
  if (alone()) return copy_into(outputs[0], input);
  return run("all_gather", input, payload(outputs, ring()), [&](Call& call) {
    if (call.by_nccl() && Parts::uneven(outputs)) {
      const Parts parts(outputs, call.options(input));
      auto whole = parts.whole(), mine = parts.single(input, /*reads=*/true);
      for (std::size_t r = 0; r < outputs.size(); ++r)
        call.state->copy_back.emplace_back(parts.part(r), outputs[r].detach());
      return call.backend->_allgather_base(whole, mine, {.asyncOp = later});
    }
    std::vector<Tensors> to{call.outputs(outputs)};
    Tensors from{call.input(input)};
    return call.backend->allgather(to, from, {.asyncOp = later});
  });
}

Work Group::State::reduce_scatter(const at::Tensor& output, const Tensors& inputs, ReduceOp op, bool later) const {
  check_count("reduce_scatter", inputs, "inputs");
  if (alone()) return copy_into(output, inputs[0]);
  return run("reduce_scatter", output, payload(inputs, ring()), [&](Call& call) {
    if (call.by_nccl() && Parts::uneven(inputs)) {
      const Parts parts(inputs, call.options(output));
      for (std::size_t r = 0; r < inputs.size(); ++r) parts.part(r).copy_(inputs[r].detach());
      auto whole = parts.whole(), mine = parts.single(output, /*reads=*/false);
      call.state->copy_back.emplace_back(Parts::in_shape(mine, output.sizes()), output.detach());
      return call.backend->_reduce_scatter_base(mine, whole, {.reduceOp = to_c10d(op), .asyncOp = later});
    }
    Tensors to{call.output(output)};
    std::vector<Tensors> from{call.inputs(inputs)};
    return call.backend->reduce_scatter(to, from, {.reduceOp = to_c10d(op), .asyncOp = later});
  });
}

Work Group::send_async(at::Tensor tensor, int peer, int tag) const {
  const auto& s = state();
  s.check_peer("send", peer);
  return s.run("send", tensor, payload(tensor, 1), [&](State::Call& call) {
    Tensors tensors{call.input(tensor)};
    return call.backend->send(tensors, peer, tag);
  });
}

Work Group::recv_async(at::Tensor tensor, int peer, int tag) const {
  const auto& s = state();
  s.check_peer("recv", peer);
  return s.run("recv", tensor, payload(tensor, 0), [&](State::Call& call) {
    Tensors tensors{call.output(tensor)};
    return call.backend->recv(tensors, peer, tag);
  });
}

Work Group::exchange_async(std::vector<Transfer> sends, std::vector<Transfer> receives, int tag) const {
  const auto& s = state();
  std::int64_t bytes = 0;
  for (const auto& [list, op, factor] : {std::tuple{&sends, "send", 1.0}, std::tuple{&receives, "recv", 0.0}})
    for (const auto& [tensor, peer] : *list) {
      s.check_peer(op, peer);
      s.book(op, payload(tensor, factor));
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
  if (sends.empty() && receives.empty()) return {};
  const auto& like = (sends.empty() ? receives : sends).front().tensor;
  return s.start("exchange", like, bytes, [&](State::Call& call) {
    auto& works = call.state->works;
    const bool coalesces = call.backend->supportsCoalescing();
    if (coalesces) call.backend->startCoalescing();
    for (const auto& [tensor, peer] : sends) {
      Tensors tensors{call.input(tensor)};
      works.push_back(call.backend->send(tensors, peer, tag));
    }
    for (const auto& [tensor, peer] : receives) {
      Tensors tensors{call.output(tensor)};
      works.push_back(call.backend->recv(tensors, peer, tag));
    }
    if (coalesces) works = {call.backend->endCoalescing()};
  });
}

void Group::all_reduce(at::Tensor tensor, ReduceOp op) const { state().all_reduce(tensor, op, false).wait(); }
Work Group::all_reduce_async(at::Tensor tensor, ReduceOp op) const { return state().all_reduce(tensor, op, true); }
void Group::broadcast(at::Tensor tensor, int root) const { state().broadcast(tensor, root, false).wait(); }
Work Group::broadcast_async(at::Tensor tensor, int root) const { return state().broadcast(tensor, root, true); }
void Group::all_gather_into(at::Tensor output, at::Tensor input) const {
  state().all_gather_into(output, input, false).wait();
}
Work Group::all_gather_into_async(at::Tensor output, at::Tensor input) const {
  return state().all_gather_into(output, input, true);
}
void Group::reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op) const {
  state().reduce_scatter_into(output, input, op, false).wait();
}
Work Group::reduce_scatter_into_async(at::Tensor output, at::Tensor input, ReduceOp op) const {
  return state().reduce_scatter_into(output, input, op, true);
}
void Group::all_gather(Tensors outputs, at::Tensor input) const { state().all_gather(outputs, input, false).wait(); }
Work Group::all_gather_async(Tensors outputs, at::Tensor input) const {
  return state().all_gather(outputs, input, true);
}
void Group::reduce_scatter(at::Tensor output, Tensors inputs, ReduceOp op) const {
  state().reduce_scatter(output, inputs, op, false).wait();
}
Work Group::reduce_scatter_async(at::Tensor output, Tensors inputs, ReduceOp op) const {
  return state().reduce_scatter(output, inputs, op, true);
}
void Group::send(at::Tensor tensor, int peer, int tag) const { send_async(tensor, peer, tag).wait(); }
void Group::recv(at::Tensor tensor, int peer, int tag) const { recv_async(tensor, peer, tag).wait(); }

void Group::reduce(at::Tensor tensor, int root, ReduceOp op) const {
  const auto& s = state();
  s.check_root("reduce", root);
  if (s.alone()) return;
  s.run("reduce", tensor, payload(tensor, s.ring()), [&](State::Call& call) {
     // Off the root the backend may use the tensor as scratch; if a copy was passed to it, the caller's tensor is
     // unchanged.
     Tensors tensors{call.take(tensor, true, s.rank == root)};
     return call.backend->reduce(tensors, {.reduceOp = to_c10d(op), .rootRank = root, .asyncOp = false});
   }).wait();
}

void Group::gather(Tensors outputs, at::Tensor input, int root) const {
  const auto& s = state();
  s.check_root("gather", root);
  if (s.rank == root) s.check_count("gather", outputs, "outputs");
  if (s.alone()) return copy_into(outputs[0], input).wait();
  s.run("gather", input, payload(input, s.rank == root ? 0 : 1), [&](State::Call& call) {
     std::vector<Tensors> to;
     if (s.rank == root) to.push_back(call.outputs(outputs));
     Tensors from{call.input(input)};
     return call.backend->gather(to, from, {.rootRank = root, .asyncOp = false});
   }).wait();
}

void Group::scatter(at::Tensor output, Tensors inputs, int root) const {
  const auto& s = state();
  s.check_root("scatter", root);
  if (s.rank == root) s.check_count("scatter", inputs, "inputs");
  if (s.alone()) return copy_into(output, inputs[0]).wait();
  s.run("scatter", output, s.rank == root ? payload(inputs, s.ring()) : payload(output, 0), [&](State::Call& call) {
     Tensors to{call.output(output)};
     std::vector<Tensors> from;
     if (s.rank == root) from.push_back(call.inputs(inputs));
     return call.backend->scatter(to, from, {.rootRank = root, .asyncOp = false});
   }).wait();
}

void Group::all_to_all(Tensors outputs, Tensors inputs) const {
  const auto& s = state();
  s.check_count("all_to_all", outputs, "outputs");
  s.check_count("all_to_all", inputs, "inputs");
  if (s.alone()) return copy_into(outputs[0], inputs[0]).wait();
  s.run("all_to_all", inputs[0], payload(inputs, s.ring()), [&](State::Call& call) {
     auto to = call.outputs(outputs), from = call.inputs(inputs);
     return call.backend->alltoall(to, from, {.asyncOp = false});
   }).wait();
}

void Group::barrier() const {
  const auto& s = state();
  if (s.alone()) return;
  s.run("barrier", at::empty({0}), {0, 0, 0}, [&](State::Call& call) {
     c10d::BarrierOptions options;
     options.asyncOp = false;
     if (const auto device = call.backend->getBoundDeviceId()) options.device_ids = {device->index()};
     return call.backend->barrier(options);
   }).wait();
}

}  // namespace trireme::comm
