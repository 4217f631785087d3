#include "core/optim/slotwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "core/base/error.h"
#include "core/optim/slots.h"

namespace trireme::optim {

SlotwiseOptimizer::SlotwiseOptimizer(std::vector<ParamGroup> groups, std::vector<std::string> state_keys)
    : Optimizer(std::move(groups)), keys_(std::move(state_keys)) {
  detail::check_slots(groups_);
  for (const auto& group : groups_) states_.emplace_back(group.slots.size());
}

std::vector<at::Tensor>& SlotwiseOptimizer::state_of(std::size_t group, std::size_t slot) {
  auto& state = states_[group][slot];
  if (state.empty())
    for (std::size_t k = 0; k < keys_.size(); ++k)
      state.push_back(detail::zeros_beside(groups_[group].slots[slot].value.detach()));
  return state;
}

void SlotwiseOptimizer::step(double lr, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    TRIREME_CHECK(states_[g].size() == group.slots.size(), "the parameters of group {} have changed", group.label);
    for (std::size_t s = 0; s < group.slots.size(); ++s) {
      auto& slot = group.slots[s];
      if (!slot.grad.defined()) continue;
      auto& state = state_of(g, s);
      auto value = slot.value.detach();
      // Only the device knows whether the step is skipped, so the update is always computed, and undone if it is.
      const bool may_skip = found_inf.defined() || slot.skip.defined();
      const auto skip = !may_skip              ? at::Tensor()
                        : !slot.skip.defined() ? detail::skip_flag(found_inf, value.device())
                                               : detail::either(found_inf, slot.skip, value.device());
      std::vector<std::pair<at::Tensor, at::Tensor>> before;
      if (may_skip) {
        before.emplace_back(value, value.clone());
        for (const auto& tensor : state) before.emplace_back(tensor, tensor.clone());
      }
      update(value, detail::gradient_for(slot), state, lr * group.lr_scale, group.weight_decay);
      for (auto& [now, old] : before) now.copy_(now.where(skip.eq(0), old));
    }
  }
}

std::vector<NamedState> SlotwiseOptimizer::state() {
  std::vector<NamedState> out;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t s = 0; s < groups_[g].slots.size(); ++s) {
      auto& state = state_of(g, s);
      for (std::size_t k = 0; k < keys_.size(); ++k) out.push_back({groups_[g].slots[s].name, keys_[k], state[k]});
    }
  return out;
}

std::int64_t SlotwiseOptimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : states_)
    for (const auto& state : group)
      for (const auto& tensor : state) bytes += tensor.nbytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace trireme::optim
