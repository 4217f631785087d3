#include "core/optim/slotwise.h"

#include <ATen/core/grad_mode.h>

namespace trireme::optim {

void SlotwiseOptimizer::step(double lr, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    for (std::size_t s = 0; s < group.slots.size(); ++s) {
      const auto& slot = group.slots[s];
      if (!slot.grad.defined()) continue;
      auto& state = states_.of(group, g, s);
      auto value = slot.value.detach();
      detail::Undo undo(slot, value, state, found_inf);
      update(value, detail::gradient_for(slot), state, lr * group.lr_scale, group.weight_decay);
      undo.finish();
    }
  }
}

}  // namespace trireme::optim
