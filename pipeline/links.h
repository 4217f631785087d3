// Links: asynchronous messages between the ranks of a pipeline, and what is in them.
//
// Messages to higher ranks and messages to lower ranks use separate communicators. With a transport that executes a
// rank's operations in order (NCCL), a receive that is posted early would otherwise block the sends posted after it.
// Between two ranks, messages are received in the order in which they are sent.
//
// NCCL connects two ranks at their first message, and both block until the other arrives. In a step that could
// deadlock, because each rank first posts a receive from the rank before it. So neighbours connect in both directions
// when the links are made, in an order without cycles.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/base/planned_device.h"
#include "core/comm/group.h"
#include "core/comm/mesh.h"
#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

// Boundary: the tensors that one stage passes to the next for a microbatch, in order. The ranks agree on it once, so
// that messages carry no header and a receive can be posted before its tensors exist.

using Tensors = std::vector<at::Tensor>;

struct TensorSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
  bool requires_grad;  ///< its gradient is sent back
  bool operator==(const TensorSpec&) const = default;
};
using Boundary = std::vector<TensorSpec>;

Boundary boundary_of(const Tensors& tensors);
/// Zeros of these shapes; tensors that want a gradient are leaves that require one.
Tensors zeros(const Boundary& boundary, c10::Device device);
/// The same tensors as non-leaves, for the first layer of a stage, which may modify them in place; gradients still
/// reach the originals.
Tensors as_non_leaves(Tensors inputs);
/// Checks the outputs of a stage against the agreed boundary. @throws LogicError that names the tensor and the
/// difference
void check(const Boundary& agreed, const Tensors& given);

/// How the shapes of a boundary depend on the number of samples in a microbatch: size = a * samples + b.
class BoundaryRule {
 public:
  BoundaryRule() = default;
  /// From two examples, of 2 and of 3 samples. @throws LogicError when they differ in the number of tensors, dims or
  /// dtypes
  BoundaryRule(const Boundary& of_two, const Boundary& of_three);
  [[nodiscard]] Boundary of(std::int64_t samples) const;

 private:
  Boundary two_;
  std::vector<std::vector<std::int64_t>> each_;
};

/// Tensors that are being received.
class Incoming {
 public:
  Incoming() = default;
  Incoming(Tensors tensors, std::vector<comm::Work> works) : tensors_(std::move(tensors)), works_(std::move(works)) {}
  /// Waits for the tensors and returns them. Can be called once.
  Tensors take();

 private:
  Tensors tensors_;
  std::vector<comm::Work> works_;
};

/// The peers that `rank` of `size` exchanges messages with in any schedule, in the order in which to connect: first
/// each even rank with the next one, then each odd rank with the next one, then the last with the first. If all ranks
/// connect in this order, one peer after another, there is no cycle of waiting ranks.
std::vector<int> meeting_order(int rank, int size);

class Links {
 public:
  /// The links along the mesh axis `axis`. Collective over the mesh's world.
  Links(comm::Mesh& mesh, const std::string& axis);

  [[nodiscard]] int rank() const { return up_.rank(); }
  [[nodiscard]] int size() const { return up_.size(); }
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] Posting posting() const { return type_of(device_) == c10::kCUDA ? Posting::at_use : Posting::ahead; }

  /// Launches sends and returns at once; the tensors' memory is kept until they are sent. Empty tensors are not sent.
  void send(int peer, const Tensors& tensors);
  /// Posts receives for tensors of these shapes.
  [[nodiscard]] Incoming receive(int peer, const Boundary& boundary);
  /// Waits until all sends are complete.
  void finish();

  /// Send and receive a boundary while ranks agree on it. Both block. The encoded boundary has at most 1000 integers.
  void send_spec(int peer, const Boundary& boundary);
  [[nodiscard]] Boundary recv_spec(int peer);

 private:
  void meet(int peer);
  [[nodiscard]] const comm::Group& to(int peer) const { return peer > rank() ? up_ : down_; }
  [[nodiscard]] const comm::Group& from(int peer) const { return peer < rank() ? up_ : down_; }

  comm::Group up_, down_;
  c10::Device device_;
  std::deque<comm::Work> sent_;
};

}  // namespace trireme::pipeline
