// Group: checks, counts, and hands each call to the backend of the tensor's device directly. The c10d dispatcher
// between them would add some microseconds a call and nothing else.
#include "core/comm/group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "core/comm/work.h"

namespace trireme::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

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

/// What the ledger books for one call.
struct Payload {
  std::int64_t elements;
  std::int64_t bytes;
  double wire_factor;
};

Payload payload(const at::Tensor& tensor, double wire_factor, std::int64_t times = 1) {
  return {tensor.numel() * times, static_cast<std::int64_t>(tensor.nbytes()) * times, wire_factor};
}

Payload payload(const Tensors& tensors, double wire_factor) {
  Payload sum{0, 0, wire_factor};
  for (const auto& tensor : tensors) {
    sum.elements += tensor.numel();
    sum.bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return sum;
}

/// Collectives are no part of any graph: parameters that require a gradient may be written.
void copy_into(const at::Tensor& to, const at::Tensor& from) { to.detach().copy_(from.detach()); }

}  // namespace

struct Group::State {
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // null for a world of one
  BackendPtr cpu, cuda;                          // null where the transport does not serve that device
  bool cuda_is_nccl = false;
  std::vector<int> ranks;
  std::string axis;
  std::shared_ptr<Ledger> ledger;
  int rank = 0, size = 1;

  [[nodiscard]] bool alone() const { return !group; }
  [[nodiscard]] double ring() const { return static_cast<double>(size - 1) / size; }

  [[noreturn]] void refuse(const char* op, const std::string& why) const {
    throw CommError(fmt::format("{} of group {} (rank {} of {}): {}", op, axis, rank, size, why));
  }

  void check_parts(const char* op, const at::Tensor& whole, const at::Tensor& part) const {
    if (whole.numel() != part.numel() * size || whole.scalar_type() != part.scalar_type())
      refuse(op, fmt::format("the whole has {} elements of {}, the part {} of {}; the whole must be {} times the part",
                             whole.numel(), c10::toString(whole.scalar_type()), part.numel(),
                             c10::toString(part.scalar_type()), size));
  }
  void check_count(const char* op, const Tensors& list, const char* what) const {
    if (list.size() != static_cast<std::size_t>(size))
      refuse(op, fmt::format("{} {} given, one a rank needed", list.size(), what));
  }
  void check_root(const char* op, int root) const {
    if (root < 0 || root >= size) refuse(op, fmt::format("no rank {} here", root));
  }
  void check_peer(const char* op, int peer) const {
    check_root(op, peer);
    if (peer == rank) refuse(op, "the peer is this rank itself");
  }

  /// One call under way: the tensors as the backend takes them.
  struct Call {
    const State& group;
    const char* op;
    std::unique_ptr<Work::State> state = std::make_unique<Work::State>();
    BackendPtr backend;

    Call(const State& owner, const char* name, const at::Tensor& like, const Payload& booked) : group(owner), op(name) {
      if (group.ledger)
        group.ledger->add(group.axis, op, static_cast<std::uint64_t>(booked.elements),
                          static_cast<std::uint64_t>(booked.bytes), booked.wire_factor);
      backend = like.is_cuda() || !group.cpu ? group.cuda : group.cpu;
      if (!backend) group.refuse(op, fmt::format("no transport for tensors on {}", like.device().str()));
    }

    /// The tensor itself where the backend takes it. NCCL takes contiguous CUDA tensors and knows no int16.
    at::Tensor take(const at::Tensor& tensor, bool reads, bool writes) {
      if (backend != group.cuda || !group.cuda_is_nccl) return tensor;
      const bool widen = tensor.scalar_type() == at::kShort;
      if (tensor.is_cuda() && tensor.is_contiguous() && !widen) return tensor;
      const auto options =
          tensor.options().device(*backend->getBoundDeviceId()).dtype(widen ? at::kInt : tensor.scalar_type());
      auto fresh = at::empty(tensor.sizes(), options.memory_format(c10::MemoryFormat::Contiguous));
      if (reads) fresh.copy_(tensor.detach());
      if (writes) state->copy_back.emplace_back(fresh, tensor.detach());
      return fresh;
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

    template <class Start>
    Work run(Start&& start) {
      state->what = fmt::format("{} of group {}", op, group.axis);
      try {
        state->work = start(*backend);
      } catch (const Error&) {
        throw;
      } catch (const c10::Error& error) {
        throw CommError(fmt::format("{}: {}", state->what, error.what_without_backtrace()));
      }
      return Work(std::move(state));
    }
  };

  Work all_reduce(const at::Tensor& tensor, ReduceOp op, bool later) const {
    if (alone()) return {};
    Call call(*this, "all_reduce", tensor, payload(tensor, 2 * ring()));
    return call.run([&](c10d::Backend& backend) {
      Tensors tensors{call.in_place(tensor)};
      c10d::AllreduceOptions options;
      options.reduceOp = to_c10d(op);
      options.asyncOp = later;
      return backend.allreduce(tensors, options);
    });
  }

  Work broadcast(const at::Tensor& tensor, int root, bool later) const {
    check_root("broadcast", root);
    if (alone()) return {};
    Call call(*this, "broadcast", tensor, payload(tensor, 1));
    return call.run([&](c10d::Backend& backend) {
      Tensors tensors{call.take(tensor, true, rank != root)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.asyncOp = later;
      return backend.broadcast(tensors, options);
    });
  }

  Work all_gather_into(const at::Tensor& output, const at::Tensor& input, bool later) const {
    check_parts("all_gather", output, input);
    if (alone()) {
      copy_into(output, input.reshape(output.sizes()));
      return {};
    }
    Call call(*this, "all_gather", input, payload(output, ring()));
    return call.run([&](c10d::Backend& backend) {
      auto to = call.output(output), from = call.input(input);
      c10d::AllgatherOptions options;
      options.asyncOp = later;
      return backend._allgather_base(to, from, options);
    });
  }

  Work reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op, bool later) const {
    check_parts("reduce_scatter", input, output);
    if (alone()) {
      copy_into(output, input.reshape(output.sizes()));
      return {};
    }
    Call call(*this, "reduce_scatter", input, payload(input, ring()));
    return call.run([&](c10d::Backend& backend) {
      auto to = call.output(output), from = call.input(input);
      c10d::ReduceScatterOptions options;
      options.reduceOp = to_c10d(op);
      options.asyncOp = later;
      return backend._reduce_scatter_base(to, from, options);
    });
  }

  Work send(const at::Tensor& tensor, int peer, int tag) const {
    check_peer("send", peer);
    Call call(*this, "send", tensor, payload(tensor, 1));
    return call.run([&](c10d::Backend& backend) {
      Tensors tensors{call.input(tensor)};
      return backend.send(tensors, peer, tag);
    });
  }

  Work recv(const at::Tensor& tensor, int peer, int tag) const {
    check_peer("recv", peer);
    Call call(*this, "recv", tensor, payload(tensor, 0));
    return call.run([&](c10d::Backend& backend) {
      Tensors tensors{call.output(tensor)};
      return backend.recv(tensors, peer, tag);
    });
  }
};

Group::Group() = default;

Group Group::alone(const std::string& axis, std::shared_ptr<Ledger> ledger) {
  Group made;
  made.state_ = std::make_shared<State>();
  made.state_->axis = axis;
  made.state_->ranks = {0};
  made.state_->ledger = std::move(ledger);
  return made;
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> group, std::vector<int> ranks, std::string axis,
             std::shared_ptr<Ledger> ledger)
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
  state_->ledger = std::move(ledger);
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
void Group::send(at::Tensor tensor, int peer, int tag) const { state().send(tensor, peer, tag).wait(); }
Work Group::send_async(at::Tensor tensor, int peer, int tag) const { return state().send(tensor, peer, tag); }
void Group::recv(at::Tensor tensor, int peer, int tag) const { state().recv(tensor, peer, tag).wait(); }
Work Group::recv_async(at::Tensor tensor, int peer, int tag) const { return state().recv(tensor, peer, tag); }

void Group::reduce(at::Tensor tensor, int root, ReduceOp op) const {
  const auto& s = state();
  s.check_root("reduce", root);
  if (s.alone()) return;
  State::Call call(s, "reduce", tensor, payload(tensor, s.ring()));
  call.run([&](c10d::Backend& backend) {
        // Off the root the backend may use the tensor as scratch; the caller's keeps its values where it was copied.
        Tensors tensors{call.take(tensor, true, s.rank == root)};
        c10d::ReduceOptions options;
        options.reduceOp = to_c10d(op);
        options.rootRank = root;
        options.asyncOp = false;
        return backend.reduce(tensors, options);
      })
      .wait();
}

void Group::all_gather(std::vector<at::Tensor> outputs, at::Tensor input) const {
  const auto& s = state();
  s.check_count("all_gather", outputs, "outputs");
  if (s.alone()) {
    copy_into(outputs[0], input);
    return;
  }
  State::Call call(s, "all_gather", input, payload(outputs, s.ring()));
  call.run([&](c10d::Backend& backend) {
        std::vector<Tensors> to{call.outputs(std::move(outputs))};
        Tensors from{call.input(input)};
        c10d::AllgatherOptions options;
        options.asyncOp = false;
        return backend.allgather(to, from, options);
      })
      .wait();
}

void Group::reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op) const {
  const auto& s = state();
  s.check_count("reduce_scatter", inputs, "inputs");
  if (s.alone()) {
    copy_into(output, inputs[0]);
    return;
  }
  State::Call call(s, "reduce_scatter", output, payload(inputs, s.ring()));
  call.run([&](c10d::Backend& backend) {
        Tensors to{call.output(output)};
        std::vector<Tensors> from{call.inputs(std::move(inputs))};
        c10d::ReduceScatterOptions options;
        options.reduceOp = to_c10d(op);
        options.asyncOp = false;
        return backend.reduce_scatter(to, from, options);
      })
      .wait();
}

void Group::gather(std::vector<at::Tensor> outputs, at::Tensor input, int root) const {
  const auto& s = state();
  s.check_root("gather", root);
  if (s.rank == root) s.check_count("gather", outputs, "outputs");
  if (s.alone()) {
    copy_into(outputs[0], input);
    return;
  }
  State::Call call(s, "gather", input, payload(input, s.rank == root ? 0 : 1));
  call.run([&](c10d::Backend& backend) {
        std::vector<Tensors> to;
        if (s.rank == root) to.push_back(call.outputs(std::move(outputs)));
        Tensors from{call.input(input)};
        c10d::GatherOptions options;
        options.rootRank = root;
        options.asyncOp = false;
        return backend.gather(to, from, options);
      })
      .wait();
}

void Group::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root) const {
  const auto& s = state();
  s.check_root("scatter", root);
  if (s.rank == root) s.check_count("scatter", inputs, "inputs");
  if (s.alone()) {
    copy_into(output, inputs[0]);
    return;
  }
  State::Call call(s, "scatter", output, s.rank == root ? payload(inputs, s.ring()) : payload(output, 0));
  call.run([&](c10d::Backend& backend) {
        Tensors to{call.output(output)};
        std::vector<Tensors> from;
        if (s.rank == root) from.push_back(call.inputs(std::move(inputs)));
        c10d::ScatterOptions options;
        options.rootRank = root;
        options.asyncOp = false;
        return backend.scatter(to, from, options);
      })
      .wait();
}

void Group::all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) const {
  const auto& s = state();
  s.check_count("all_to_all", outputs, "outputs");
  s.check_count("all_to_all", inputs, "inputs");
  if (s.alone()) {
    copy_into(outputs[0], inputs[0]);
    return;
  }
  State::Call call(s, "all_to_all", inputs[0], payload(inputs, s.ring()));
  call.run([&](c10d::Backend& backend) {
        auto to = call.outputs(std::move(outputs)), from = call.inputs(std::move(inputs));
        c10d::AllToAllOptions options;
        options.asyncOp = false;
        return backend.alltoall(to, from, options);
      })
      .wait();
}

void Group::barrier() const {
  const auto& s = state();
  if (s.alone()) return;
  const auto token = at::empty({0});
  State::Call call(s, "barrier", token, {0, 0, 0});
  call.run([&](c10d::Backend& backend) {
        c10d::BarrierOptions options;
        options.asyncOp = false;
        if (const auto device = backend.getBoundDeviceId()) options.device_ids = {device->index()};
        return backend.barrier(options);
      })
      .wait();
}

}  // namespace trireme::comm
