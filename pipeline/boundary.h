// Boundary: the tensors that go from one stage to the next for a microbatch, in their order. Ranks agree on it once, so
// that a message is the bare numbers: no header, and a receive can be posted before its tensors exist.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"

namespace trireme::pipeline {

using Tensors = std::vector<at::Tensor>;

struct TensorSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
  bool wants_grad;  ///< a gradient of it comes back
  bool operator==(const TensorSpec&) const = default;
};
using Boundary = std::vector<TensorSpec>;

Boundary boundary_of(const Tensors& tensors);
/// Zeros of these shapes; those that want a gradient are leaves that do.
Tensors zeros(const Boundary& boundary, c10::Device device);
/// The same tensors for a stage's first layer, which may change them in place: no leaves, and gradients go on to those.
Tensors changeable(Tensors inputs);
/// What a stage gave is what was agreed. @throws LogicError that says which tensor differs and how
void check(const Boundary& agreed, const Tensors& given);

/// How the shapes of a boundary follow from the samples of a microbatch: each size is samples * each + fixed.
class BoundaryRule {
 public:
  BoundaryRule() = default;
  /// From two examples, of 2 and of 3 samples. @throws LogicError when they are not of one kind
  BoundaryRule(const Boundary& of_two, const Boundary& of_three);
  [[nodiscard]] Boundary of(std::int64_t samples) const;

 private:
  Boundary two_;
  std::vector<std::vector<std::int64_t>> each_;
};

/// Boundaries as messages, for the moment of agreement: both wait. At most 1000 numbers.
void send_spec(const Boundary& boundary, const comm::Group& group, int peer, c10::Device device);
Boundary recv_spec(const comm::Group& group, int peer, c10::Device device);

}  // namespace trireme::pipeline
