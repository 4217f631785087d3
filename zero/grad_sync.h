// GradSync: from the gradients of this rank's backward passes to its part of their sum over all ranks.
//
// ready() is the one door: a hook calls it when a parameter's gradient of the pass is final, a pipeline's executor may
// call it instead. The gradient is taken into its bucket and freed at the parameter; a full bucket is reduced while the
// pass goes on, always in bucket order, so that every rank issues the same collectives in the same order.
//
// A section is what one backward pass covers: the whole model, or a part of it that a pipeline runs by itself. Its
// buckets follow each other; the passes of different sections may come in any order, the same on every rank. The
// gradients of a late section come from passes of several: no hook takes them, and settle() lets their caller add what
// the same parameters have got elsewhere.
//
// A bucket's life, once a reduction:  idle -> filling -> reducing -> done -> idle. Anything else is a LogicError.
//
// Memory, in gradients of P elements over N ranks: keeping full gradients (stage 1) P, and P/N that has arrived;
// partitioned (stage 2) P/N and at most two buckets on their way, or P while passes accumulate under hold(), as those
// of late sections do. A parameter without a gradient keeps its bucket, and those behind it, until the end of the pass.
// Traffic: P elements a reduction, by reduce-scatter; over replicas an all-reduce of P/N more.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/group.h"
#include "zero/buckets.h"
#include "zero/host_copies.h"

namespace trireme::zero {

struct GradSyncOptions {
  bool partition = false;  ///< full gradients live only while they are on their way
  bool overlap = true;  ///< a bucket that fills sets out while the pass goes on; else at close(), or at the pass's end
  std::optional<int> late_section{};  ///< from here on gradients stay at the parameters until the caller says ready()
  std::optional<at::ScalarType> communication_dtype{};  ///< unset: the gradients' own
  std::optional<at::ScalarType> accumulation_dtype{};   ///< of what is kept; unset: the gradients' own
  /// Whether a bucket is updated in host memory: its part sets out there as soon as it is reduced. Empty: none is.
  std::function<bool(std::size_t)> on_host{};
};

/// Which ranks take part.
struct GradGroups {
  comm::Group shards;               ///< share out each bucket
  comm::Group replicas;             ///< hold the same parts; a group of one where there are none
  comm::Group everyone;             ///< both
  std::vector<std::string> axes{};  ///< of the mesh, that `shards` spans; empty: its own
};

class GradSync {
 public:
  using Further = std::function<void(at::Tensor& part)>;

  /// `leaves`: the parameters that `buckets` were planned over, with their memory. Frozen buckets are passed over.
  GradSync(const std::vector<Bucket>& buckets, const std::vector<nn::Declaration>& leaves, GradGroups groups,
           GradSyncOptions options);
  ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

  /// Calls ready() for each parameter whenever a backward pass has accumulated its gradient, but for those of late
  /// sections. Once; until this object ends.
  void hook();
  /// Takes the gradient that leaves[index] has of this pass. @pre once a pass, for a trained parameter
  void ready(std::size_t index);
  /// No further gradient of the pass comes to a bucket: what did not come counts as zero, and the full buckets set out.
  /// For a caller that reaches this place on every rank at the same point among its other collectives.
  void close(std::size_t bucket);
  /// A section's pass has ended: what did not come counts as zero, and the last buckets set out (unless held).
  void end_pass(int section = 0);
  /// Waits for the reductions of a section whose buckets have all set out, at most two of them. `further` then changes
  /// in place this rank's part [part_size] of what they brought, before it joins what earlier ones of the step did.
  void settle(int section, const Further& further);
  /// Held passes add up here and reduce nothing.
  void hold(bool on) { held_ = on; }
  [[nodiscard]] bool held() const { return held_; }
  /// Waits for all reductions and tells all ranks which parameters had a gradient. After it, parts() are this rank's
  /// parts of the sums, until the next ready(). Collective.
  void finish();
  /// Whether this rank had a gradient of leaves[index] since reset().
  [[nodiscard]] bool used(std::size_t index) const { return used_.at(index) != 0; }
  /// It counts as one that had.
  void use(std::size_t index) { used_.at(index) = 1; }
  /// Forgets the gradients: the next pass starts anew.
  void reset();

  /// This rank's part of each trained bucket's gradient, [part_size], in the accumulation dtype; padding is zero.
  /// Undefined for a frozen bucket. Valid after finish().
  [[nodiscard]] const std::vector<at::Tensor>& parts() const { return parts_; }
  /// parts()[bucket] in host memory, arrived. Valid after finish().
  [[nodiscard]] at::Tensor host_part(std::size_t bucket) { return to_host_.wait(bucket, parts_.at(bucket)); }
  /// Undefined when this rank had a gradient of leaves[index] since reset(). Else a 0-dim flag, on the device or in
  /// host memory: true when no rank had one, and the parameter must stay as it is. Valid after finish(); the first call
  /// for host memory waits.
  [[nodiscard]] at::Tensor unused(std::size_t index, bool on_host = false);
  /// Bytes of gradients held now.
  [[nodiscard]] std::int64_t bytes() const;

 private:
  enum class State { idle, filling, reducing, done };
  struct Filled {
    explicit Filled(const Bucket& bucket);
    Bucket plan;
    State state = State::idle;
    std::vector<bool> came;     ///< by item, in this pass
    std::vector<bool> written;  ///< by item, since the last reduction
    std::size_t missing = 0;    ///< of this pass
    at::Tensor full;            ///< [total]; undefined while nothing is in it (partitioned)
    at::Tensor sum;             ///< this rank's part of earlier reductions of the step; undefined: none
    at::Tensor sent, received;  ///< on their way: input and output of the reduction
    comm::Work work;
  };
  static const char* name_of(State state);
  void move(Filled& bucket, State from, State to);
  void begin(std::size_t index);
  void take(std::size_t index, std::size_t item, const at::Tensor& gradient);
  struct Section {
    std::size_t begin, end;  ///< of its buckets
    std::size_t next;        ///< the bucket that sets out next
    std::size_t settled;     ///< buckets before this one have been waited for
  };
  Section& section_of(std::size_t bucket);
  void launch_full(Section& section);
  void launch(std::size_t index);
  void settle_bucket(std::size_t index, const Further& further = {});
  void settle_all(Section& section, const Further& further = {});
  [[nodiscard]] at::TensorOptions kept() const;

  std::vector<Filled> buckets_;  ///< the trained ones, which come first among all
  std::vector<nn::Declaration> leaves_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;  ///< of a parameter: bucket and item
  std::vector<at::Tensor> parts_;
  std::vector<std::uint8_t> used_;
  at::Tensor used_anywhere_, used_on_host_;  ///< uint8 [parameters]; the copy is made when it is asked for
  HostCopies to_host_;
  GradGroups groups_;
  GradSyncOptions options_;
  std::map<int, Section> sections_;
  bool held_ = false;
};

}  // namespace trireme::zero
