// SlotwiseOptimizer: an optimizer whose update of a tensor needs nothing but that tensor, its gradient and its state.
// A program's own optimizer defines update(); examples/own_everything has one.
#pragma once

#include <string>
#include <vector>

#include "core/optim/optimizer.h"
#include "core/optim/slots.h"

namespace trireme::optim {

class SlotwiseOptimizer : public detail::SlotOptimizer {
 public:
  void step(double lr, const at::Tensor& found_inf = {}) final;

 protected:
  /// `state_keys`: the names of the state tensors that each slot has, zeros at first, with the shape and dtype of its
  /// value: {"square_avg"}; "step" is a float32 0-dim tensor. A slot may be a part of a parameter (contract of ZeRO),
  /// so that only updates by element are the same in every layout.
  using SlotOptimizer::SlotOptimizer;
  /// Updates `value` and `state` (in the order of the keys) in place, without synchronising the host. Called without
  /// autograd. `lr`: of this slot's group.
  virtual void update(at::Tensor& value, const at::Tensor& grad, std::vector<at::Tensor>& state, double lr,
                      double weight_decay) const = 0;
};

}  // namespace trireme::optim
