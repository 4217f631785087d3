// GradSync: from the gradients of this rank's backward passes to its part of their sum over all ranks.
//
// Gradients enter through ready() alone. An autograd hook calls it when a parameter's gradient of the pass is final; a
// pipeline's executor may call it instead. The gradient is copied into its bucket and freed at the parameter. A full
// bucket is reduced while the backward pass continues. Buckets are reduced in order, so that every rank issues the same
// collectives in the same order.
//
// A gradient group is the set of parameters whose gradients one backward pass completes: the whole model, or the part
// of it that one pipeline stage runs. The buckets of a group are consecutive. Passes of different groups may come in
// any order that is the same on every rank. The gradients of a deferred group come from several passes: no hook takes
// them, and wait() lets the caller add the gradients that the same parameters have on other stages.
//
// States of a bucket in each reduction:  idle -> filling -> reducing -> done -> idle. Any other change is a LogicError.
//
// Memory, for P gradient elements over N ranks: full gradients (stage 1) take P, and P/N for the reduced part;
// partitioned gradients (stage 2) take P/N and at most two buckets that are being reduced, or P while passes accumulate
// under hold() and in deferred groups. A parameter without a gradient delays its bucket, and those after it, until the
// end of the pass. Communication: a reduce-scatter of P elements for each reduction; with replicas also an all-reduce
// of P/N.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/comm/group.h"
#include "zero/buckets.h"
#include "zero/host_copies.h"

namespace trireme::zero {

struct GradSyncOptions {
  bool partition = false;  ///< full gradients exist only until they are reduced
  bool overlap = true;     ///< a full bucket is reduced during the pass; else at close(), or at the pass's end
  /// The first deferred group: from it on, gradients stay at the parameters until the caller calls ready().
  std::optional<int> deferred_group{};
  std::optional<at::ScalarType> communication_dtype{};  ///< unset: that of the gradients
  std::optional<at::ScalarType> accumulation_dtype{};   ///< of the reduced parts; unset: that of the gradients
  /// Whether a bucket is updated in host memory; its part is copied there as soon as it is reduced. Empty: none is.
  std::function<bool(std::size_t)> on_host{};
};

class GradSync {
 public:
  /// Changes a reduced part in place.
  using Further = std::function<void(at::Tensor& part)>;

  /// `leaves`: the parameters for which `buckets` were planned, with memory. Frozen buckets are ignored.
  GradSync(const std::vector<Bucket>& buckets, const std::vector<nn::Declaration>& leaves, GradSyncOptions options);
  ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

  /// Installs hooks that call ready() whenever a backward pass has accumulated a parameter's gradient, except in
  /// deferred groups. They stay until this object ends. @pre called once
  void hook();
  /// Takes this pass's gradient of leaves[index]. @pre once in each pass, for a trained parameter
  void ready(std::size_t index);
  /// Declares that no further gradient of the pass comes to a bucket: missing ones count as zero, and the reductions of
  /// full buckets start. Collective: all ranks must call it at the same point among their other collectives.
  void close(std::size_t bucket);
  /// The backward pass of a group has ended: missing gradients count as zero, and the reductions of its last buckets
  /// start (unless held).
  void end_pass(int gradient_group = 0);
  /// Waits for the reductions of a group. @pre end_pass() was called for it. `further` is given this rank's reduced
  /// part [part_size] before it is added to those of earlier reductions of the step.
  void wait(int gradient_group, const Further& further);
  /// While held, passes accumulate and nothing is reduced.
  void hold(bool on) { held_ = on; }
  [[nodiscard]] bool held() const { return held_; }
  /// Waits for all reductions, and exchanges which parameters had a gradient. Afterwards parts() are this rank's parts
  /// of the sums, until the next ready(). Collective.
  void finish();
  /// Whether this rank had a gradient of leaves[index] since reset().
  [[nodiscard]] bool used(std::size_t index) const { return used_.at(index) != 0; }
  /// Records a gradient of leaves[index] that another rank computed, so that the parameter is updated.
  void use(std::size_t index) { used_.at(index) = 1; }
  /// Discards the gradients.
  void reset();

  /// This rank's part of each trained bucket's gradient, [part_size], in the accumulation dtype; padding is zero.
  /// Undefined for a frozen bucket. Valid after finish().
  [[nodiscard]] const std::vector<at::Tensor>& parts() const { return parts_; }
  /// A copy of parts()[bucket] in host memory; waits for it. Valid after finish().
  [[nodiscard]] at::Tensor host_part(std::size_t bucket) { return to_host_.wait(bucket, parts_.at(bucket)); }
  /// Undefined when this rank had a gradient of leaves[index] since reset(). Else a 0-dim flag, on the device or in
  /// host memory, that is true when no rank had one, so that the parameter must not change. Valid after finish(); the
  /// first call for host memory waits.
  [[nodiscard]] at::Tensor unused(std::size_t index, bool on_host = false);
  /// Bytes of gradients in memory now.
  [[nodiscard]] std::int64_t bytes() const;

 private:
  enum class State { idle, filling, reducing, done };
  struct Filled {
    explicit Filled(const Bucket& bucket);
    Bucket plan;
    State state = State::idle;
    std::vector<bool> came;     ///< by item: its gradient of this pass is in `full`
    std::vector<bool> written;  ///< by item: since the last reduction
    std::size_t missing = 0;    ///< items without a gradient of this pass
    at::Tensor full;            ///< [total]; undefined while empty (partitioned)
    at::Tensor sum;             ///< this rank's part of earlier reductions of the step, or undefined
    at::Tensor sent, received;  ///< input and output of the reduction that is running
    comm::Work work;
  };
  static const char* name_of(State state);
  void move(Filled& bucket, State from, State to);
  void begin(std::size_t index);
  void take(std::size_t index, std::size_t item, const at::Tensor& gradient);
  struct GradientGroup {
    std::size_t begin, end;  ///< its buckets
    std::size_t next;        ///< the first bucket whose reduction has not started
    std::size_t waited;      ///< the first bucket that has not been waited for
  };
  GradientGroup& group_of(std::size_t bucket);
  void launch_full(GradientGroup& gradient_group);
  void launch(std::size_t index);
  void wait_bucket(std::size_t index, const Further& further = {});
  void wait_all(GradientGroup& gradient_group, const Further& further = {});
  [[nodiscard]] at::TensorOptions stored_options() const;
  [[nodiscard]] at::Tensor used_on_any_rank() const;

  std::vector<Filled> buckets_;  ///< the trained ones, which come first among all
  std::vector<nn::Declaration> leaves_;
  std::vector<std::pair<std::size_t, std::size_t>> locations_;  ///< each parameter's bucket and item
  std::vector<at::Tensor> parts_;
  std::vector<std::uint8_t> used_;
  at::Tensor used_anywhere_, used_on_host_;  ///< uint8 [parameters]; the copy is made when it is asked for
  HostCopies to_host_;
  GradSyncOptions options_;
  std::map<int, GradientGroup> gradient_groups_;
  bool held_ = false;
};

}  // namespace trireme::zero
