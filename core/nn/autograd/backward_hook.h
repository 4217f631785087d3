// A function that is called when the backward pass reaches certain tensors, for example the inputs or outputs of a
// block.
//
// A backward pass that is split in two (split_backward.h) calls it once in each part.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>

#include "core/nn/context.h"

namespace trireme::nn {

/// Which gradients are complete when the function is called.
enum class BackwardPart {
  whole,   ///< all gradients of what was computed from these tensors
  inputs,  ///< the same, except gradients of weights, which follow in the second part
  weights  ///< gradients of weights too; this is the second part
};

using BackwardCallback = std::function<void(BackwardPart part)>;

/// Returns the same tensors, connected to a hook: when the backward pass reaches them, `call` runs once (in a split
/// pass once in each part), before gradients flow further back. Tensors that need no gradient are not connected. If
/// none needs one, `call` never runs. With `always` it does: then gradients of the floating-point tensors are computed,
/// and they stop at the hook.
Tensors register_backward_hook(Tensors tensors, BackwardCallback call, bool always = false);

/// The hook's node in the autograd graph.
class BackwardHook : public torch::autograd::Node {
 public:
  BackwardHook(BackwardCallback call, torch::autograd::edge_list behind)
      : Node(std::move(behind)), call_(std::move(call)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  [[nodiscard]] const BackwardCallback& call() const { return call_; }
  /// Sets the part that later calls report.
  void set(BackwardPart part) { part_ = part; }

 private:
  BackwardCallback call_;
  BackwardPart part_ = BackwardPart::whole;
};

}  // namespace trireme::nn
