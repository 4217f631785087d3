// Links: messages between the ranks of a pipeline, posted and not waited for where they stand.
//
// What goes to a higher rank and what goes to a lower one have a communicator each: a transport that carries out a
// rank's posts one after the other (NCCL) would else let a receive that is posted ahead hold up the sends behind it.
// Between two ranks messages are received in the order in which they are sent.
//
// NCCL connects two ranks at their first message, and both wait there for each other. In a step that could close a
// circle: each rank posts a receive from the one before it first. So neighbours meet when the links are made, both
// ways, in an order that has no circle.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/mesh.h"
#include "pipeline/boundary.h"
#include "pipeline/schedule/program.h"

namespace trireme::pipeline {

/// Tensors on their way to this rank.
class Incoming {
 public:
  Incoming() = default;
  Incoming(Tensors tensors, std::vector<comm::Work> works) : tensors_(std::move(tensors)), works_(std::move(works)) {}
  /// Waits for them. Once.
  Tensors take();

 private:
  Tensors tensors_;
  std::vector<comm::Work> works_;
};

/// The ranks that have messages for `rank` of `size` in any schedule, in the order to meet them: even ranks with the
/// next, odd ranks with the next, the last with the first. When all ranks meet theirs so, one after the other, nobody
/// waits for a rank that waits.
std::vector<int> meeting_order(int rank, int size);

class Links {
 public:
  /// Along `axis`. Collective over the mesh's world.
  Links(comm::Mesh& mesh, const std::string& axis);

  [[nodiscard]] int rank() const { return up_.rank(); }
  [[nodiscard]] int size() const { return up_.size(); }
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] Posting posting() const { return device_.is_cuda() ? Posting::at_use : Posting::ahead; }

  /// Returns at once, and keeps the tensors' memory until they are gone. Empty tensors are not sent.
  void send(int peer, const Tensors& tensors);
  /// Posts receives for tensors of these shapes.
  [[nodiscard]] Incoming receive(int peer, const Boundary& boundary);
  /// Waits until all that was sent is gone.
  void finish();

  /// At the moment of agreement, see boundary.h.
  void send_spec(int peer, const Boundary& boundary) { pipeline::send_spec(boundary, to(peer), peer, device_); }
  [[nodiscard]] Boundary recv_spec(int peer) { return pipeline::recv_spec(from(peer), peer, device_); }

 private:
  void meet(int peer);
  [[nodiscard]] const comm::Group& to(int peer) const { return peer > rank() ? up_ : down_; }
  [[nodiscard]] const comm::Group& from(int peer) const { return peer < rank() ? up_ : down_; }

  comm::Group up_, down_;
  c10::Device device_;
  std::deque<comm::Work> sent_;
};

}  // namespace trireme::pipeline
