// Boundary: the tensors that one stage passes to the next for a microbatch, in order. The ranks agree on it once, so
// that messages carry no header and a receive can be posted before its tensors exist.
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

/// Send and receive a boundary while ranks agree on it. Both block. The encoded boundary has at most 1000 integers.
void send_spec(const Boundary& boundary, const comm::Group& group, int peer, c10::Device device);
Boundary recv_spec(const comm::Group& group, int peer, c10::Device device);

}  // namespace trireme::pipeline
