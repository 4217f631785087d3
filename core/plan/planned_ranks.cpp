#include "core/plan/planned_ranks.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/base/error.h"

namespace trireme::plan {

void PlannedClock::wait(double begun, double end) {
  if (end <= now) return;
  const double late = std::max(0.0, std::min(end, begun) - now);
  idle += late;
  communication += end - now - late;
  now = end;
}

void PlannedMail::send(int from, int to, const std::string& channel, Message message) {
  {
    const std::lock_guard lock(mutex_);
    messages_[{{from, to}, channel}].push_back(std::move(message));
  }
  changed_.notify_all();
}

PlannedMail::Message PlannedMail::receive(int from, int to, const std::string& channel, std::size_t number) {
  std::unique_lock lock(mutex_);
  const auto& sent = messages_[{{from, to}, channel}];
  changed_.wait(lock, [&] { return sent.size() > number || gone_.count(from) != 0; });
  if (sent.size() <= number)
    throw CommError(fmt::format("rank {} ended before it had sent what rank {} waits for", from, to));
  return sent[number];
}

void PlannedMail::leave(int rank) {
  {
    const std::lock_guard lock(mutex_);
    gone_.insert(rank);
  }
  changed_.notify_all();
}

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// An operation whose end is found out by whoever waits for it.
class PlannedWork final : public c10d::Work {
 public:
  explicit PlannedWork(std::function<void()> wait) : wait_(std::move(wait)) {}
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (const auto once = std::exchange(wait_, nullptr)) once();
    return true;
  }

 private:
  std::function<void()> wait_;
};

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// The messages of one group. Values on the host are computed as if every rank had those of this one; tensors on the
/// meta device have none.
class PlannedBackend final : public c10d::Backend {
 public:
  PlannedBackend(int rank, std::vector<int> ranks, std::string channel, const Machine& machine, PlannedMail& mail,
                 PlannedClock& clock)
      : c10d::Backend(rank, static_cast<int>(ranks.size())),
        ranks_(std::move(ranks)),
        channel_(std::move(channel)),
        machine_(machine),
        mail_(mail),
        clock_(clock) {}

  const std::string getBackendName() const override { return "planned"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& /*options*/) override {
    return collective(bytes_of(tensors));
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    add_up(tensors, options.reduceOp);
    return collective(2 * ring() * bytes_of(tensors), 2);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    add_up(tensors, options.reduceOp);
    return collective(ring() * bytes_of(tensors));
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& /*o*/) override {
    for (auto& output : outputs.front()) copy(output, inputs.front());
    return collective(ring() * bytes_of(outputs.front()));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& /*options*/) override {
    if (!output.is_meta() && output.numel() > 0)
      output.view({size_, -1}).copy_(input.reshape({1, -1}).expand({size_, input.numel()}));
    return collective(ring() * bytes_of({output}));
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    copy(outputs.front(), inputs.front()[static_cast<std::size_t>(rank_)]);
    add_up(outputs, options.reduceOp);
    return collective(ring() * bytes_of(inputs.front()));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    copy(output, input.view({size_, -1})[rank_].view(output.sizes()));
    Tensors outputs{output};
    add_up(outputs, options.reduceOp);
    return collective(ring() * bytes_of({input}));
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& /*options*/) override {
    if (!outputs.empty())
      for (auto& output : outputs.front()) copy(output, inputs.front());
    return collective(bytes_of(inputs));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& /*options*/) override {
    if (!inputs.empty()) copy(outputs.front(), inputs.front()[static_cast<std::size_t>(rank_)]);
    return collective(bytes_of(outputs));
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& /*options*/) override {
    for (std::size_t i = 0; i < outputs.size(); ++i) copy(outputs[i], inputs[i]);
    return all_to_all(ring() * bytes_of(inputs));
  }
  WorkPtr barrier(const c10d::BarrierOptions& /*options*/) override { return collective(0); }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const auto& tensor = tensors.front();
    const double takes = machine_.seconds(bytes_of(tensors), 1, {world_rank(rank_), world_rank(peer)});
    sent_until_ = std::max(sent_until_, clock_.now) + takes;
    if (mail_.has(world_rank(peer)))
      mail_.send(world_rank(rank_), world_rank(peer), fmt::format("{} {}", channel_, tag),
                 {clock_.now, sent_until_, tensor.is_meta() ? at::Tensor() : tensor.clone()});
    return c10::make_intrusive<PlannedWork>([] {});
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    const auto tensor = tensors.front();
    if (!mail_.has(world_rank(peer)))
      return enqueue(machine_.seconds(bytes_of(tensors), 1, {world_rank(rank_), world_rank(peer)}));
    const auto channel = fmt::format("{} {}", channel_, tag);
    const auto number = received_[{peer, channel}]++;
    return c10::make_intrusive<PlannedWork>([this, tensor, peer, channel, number, self = self_()] {
      const auto message = mail_.receive(world_rank(peer), world_rank(rank_), channel, number);
      if (message.values.defined()) at::Tensor(tensor).copy_(message.values);
      clock_.wait(message.sent, message.arrives);
      clock_.met = clock_.now;
    });
  }

 private:
  [[nodiscard]] c10::intrusive_ptr<PlannedBackend> self_() {
    return c10::intrusive_ptr<PlannedBackend>::unsafe_reclaim_from_nonowning(this);
  }
  [[nodiscard]] int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] double ring() const { return static_cast<double>(size_ - 1) / size_; }
  static void copy(const at::Tensor& to, const at::Tensor& from) {
    if (!to.is_meta() && to.sizes() == from.sizes()) to.copy_(from);
  }
  void add_up(const Tensors& tensors, const c10d::ReduceOp& op) const {
    for (const auto& tensor : tensors)
      if (!tensor.is_meta() && op == c10d::ReduceOp::SUM) tensor.mul_(size_);
  }
  WorkPtr collective(double bytes, int rounds = 1) { return enqueue(machine_.seconds(bytes, rounds, ranks_)); }
  /// By the link to the farthest rank.
  WorkPtr all_to_all(double bytes) {
    return enqueue(machine_.seconds(bytes, size_ - 1, {ranks_.front(), ranks_.back()}));
  }
  /// One operation of the group after another.
  WorkPtr enqueue(double seconds) {
    const double arrived = clock_.now + machine_.skew(clock_.now - clock_.met, ranks_);
    clock_.met = clock_.now;
    const double end = busy_until_ = std::max(busy_until_, arrived) + seconds;
    return c10::make_intrusive<PlannedWork>([this, end, self = self_()] { clock_.wait(0, end); });
  }

  std::vector<int> ranks_;
  std::string channel_;
  const Machine& machine_;
  PlannedMail& mail_;
  PlannedClock& clock_;
  double busy_until_ = 0, sent_until_ = 0;
  std::map<std::pair<int, std::string>, std::size_t> received_;  ///< numbers of messages, by peer and channel
};

}  // namespace

PlannedWorld::PlannedWorld(const LaunchInfo& info, const Machine& machine, PlannedMail& mail)
    : comm::World(info, c10::Device(c10::kMeta), "planned"), mail_(mail), machine_(machine) {
  std::vector<int> all(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) all[static_cast<std::size_t>(rank)] = rank;
  group_ = make_group(all, "world");
}

comm::Group PlannedWorld::make_group(const std::vector<int>& ranks, const std::string& axis) {
  const int number = groups_++;  // the same on all ranks, which make all groups in one order
  const auto at = std::find(ranks.begin(), ranks.end(), rank());
  if (at == ranks.end()) return {};
  if (ranks.size() == 1) return comm::Group::alone(axis, rank(), comm_stats_);
  const auto mine = static_cast<int>(at - ranks.begin());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(mine, static_cast<int>(ranks.size()));
  group->setBackend(
      c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
      c10::make_intrusive<PlannedBackend>(mine, ranks, fmt::format("{} {}", axis, number), machine_, mail_, clock_));
  return {group, ranks, axis, comm_stats_};
}

void PlannedWorld::abort(int exit_code) { std::_Exit(exit_code); }

}  // namespace trireme::plan
