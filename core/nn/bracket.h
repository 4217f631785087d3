// A call at a place in the backward pass: where it comes to a block, say, and where it leaves it.
//
// A pass in two (split_backward.h) comes by twice: nodes of its second part may read what a call has provided.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>

#include "core/nn/context.h"

namespace trireme::nn {

/// What has happened where a call is made.
enum class BackwardPart {
  whole,   ///< the gradients of all that was computed behind the place are there
  inputs,  ///< ... but for the weights', which come later
  weights  ///< ... these too now: the second part of a pass
};

using OnBackward = std::function<void(BackwardPart part)>;

/// The same tensors. When the backward pass comes to them, `call` runs once, before any gradient goes further back; in
/// a pass in two, once in each part. Those that need no gradient pass by; when none does, `call` never runs, unless it
/// is to run `always`: then the floating-point ones are made to need one, which ends here.
Tensors on_backward(Tensors tensors, OnBackward call, bool always = false);

/// Its node in the graph.
class Bracket : public torch::autograd::Node {
 public:
  Bracket(OnBackward call, torch::autograd::edge_list behind) : Node(std::move(behind)), call_(std::move(call)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  [[nodiscard]] const OnBackward& call() const { return call_; }
  /// What it says from now on.
  void set(BackwardPart part) { part_ = part; }

 private:
  OnBackward call_;
  BackwardPart part_ = BackwardPart::whole;
};

}  // namespace trireme::nn
