#include "core/optim/slots.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::optim::detail {

at::Tensor gradient_for(const Slot& slot) {
  TRIREME_CHECK(slot.grad.sizes() == slot.value.sizes() && slot.grad.device() == slot.value.device(),
                "{}: the gradient's shape or device differs from its parameter's", slot.name);
  if (slot.grad.scalar_type() == slot.value.scalar_type() && slot.grad.strides() == slot.value.strides())
    return slot.grad;
  return at::empty_like(slot.value).copy_(slot.grad);
}

at::Tensor skip_flag(const at::Tensor& found_inf, c10::Device device) {
  // A copy to host memory must be complete before a kernel on the host reads it.
  return found_inf.ne(0).to(device, at::kFloat, /*non_blocking=*/!device.is_cpu());
}

at::Tensor either(const at::Tensor& found_inf, const at::Tensor& flag, c10::Device device) {
  const auto own = skip_flag(flag, device);
  return found_inf.defined() ? at::max(own, skip_flag(found_inf, device)) : own;
}

SlotStates::SlotStates(const std::vector<ParamGroup>& groups, std::vector<std::string> keys) : keys_(std::move(keys)) {
  for (const auto& group : groups) states_.emplace_back(group.slots.size());
}

std::vector<at::Tensor>& SlotStates::of(const ParamGroup& in, std::size_t group, std::size_t slot) {
  TRIREME_CHECK(states_[group].size() == in.slots.size(), "the parameters of group {} have changed", in.label);
  auto& state = states_[group][slot];
  const auto value = in.slots[slot].value.detach();
  if (state.empty())
    for (const auto& key : keys_)
      state.push_back(key == "step" ? at::zeros({}, value.options().dtype(at::kFloat)) : at::zeros_like(value));
  return state;
}

std::vector<NamedState> SlotStates::all(const std::vector<ParamGroup>& groups) {
  std::vector<NamedState> out;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t s = 0; s < groups[g].slots.size(); ++s) {
      auto& state = of(groups[g], g, s);
      for (std::size_t k = 0; k < keys_.size(); ++k) out.push_back({groups[g].slots[s].name, keys_[k], state[k]});
    }
  return out;
}

std::int64_t SlotStates::bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : states_)
    for (const auto& state : group)
      for (const auto& tensor : state) bytes += tensor.nbytes();
  return static_cast<std::int64_t>(bytes);
}

Undo::Undo(const Slot& slot, const at::Tensor& value, const std::vector<at::Tensor>& state,
           const at::Tensor& found_inf) {
  if (!found_inf.defined() && !slot.skip.defined()) return;
  skip_ = slot.skip.defined() ? either(found_inf, slot.skip, value.device()) : skip_flag(found_inf, value.device());
  before_.emplace_back(value, value.clone());
  for (const auto& tensor : state) before_.emplace_back(tensor, tensor.clone());
}

void Undo::finish() {
  // Selected with where(), not multiplied: 0 x inf is not 0.
  for (auto& [now, old] : before_) now.copy_(now.where(skip_.eq(0), old));
}

SlotOptimizer::SlotOptimizer(std::vector<ParamGroup> groups, std::vector<std::string> state_keys)
    : Optimizer(std::move(groups)), states_(groups_, std::move(state_keys)) {
  for (const auto& group : groups_)
    for (const auto& slot : group.slots)
      TRIREME_CHECK(slot.value.defined() && slot.value.is_floating_point() && slot.value.is_non_overlapping_and_dense(),
                    "{}: optimizers update only dense floating-point tensors", slot.name);
}

std::string description(std::string_view begin, const OptimizerOptions& common, std::string_view own,
                        const std::vector<ParamGroup>& groups) {
  auto out = fmt::format("{}lr {}{}, weight decay {}", begin, common.lr, own, common.weight_decay);
  for (const auto& group : groups) {
    if (group.label == "no_decay") out += fmt::format(", none on {} tensors", group.slots.size());
    if (group.label == "no_decay" || group.label == "decay") continue;
    out += fmt::format("; {}: lr x {}, weight decay {} on {}", group.label.substr(0, group.label.rfind(' ')),
                       group.lr_scale, group.weight_decay, text::quantity(group.slots.size(), "tensor"));
  }
  return out + ")";
}

}  // namespace trireme::optim::detail
