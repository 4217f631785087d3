#include "core/optim/slots.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros_like.h>

#include "core/base/error.h"

namespace trireme::optim::detail {

at::Tensor gradient_for(const Slot& slot) {
  TRIREME_CHECK(slot.grad.sizes() == slot.value.sizes() && slot.grad.device() == slot.value.device(),
                "{}: the gradient's shape or device differs from its parameter's", slot.name);
  if (slot.grad.scalar_type() == slot.value.scalar_type() && slot.grad.strides() == slot.value.strides())
    return slot.grad;
  return at::empty_like(slot.value).copy_(slot.grad);
}

at::Tensor zeros_beside(const at::Tensor& value) { return at::zeros_like(value); }

at::Tensor skip_flag(const at::Tensor& found_inf, c10::Device device) {
  // A copy to host memory must be complete before a kernel on the host reads it.
  return found_inf.ne(0).to(device, at::kFloat, /*non_blocking=*/!device.is_cpu());
}

at::Tensor either(const at::Tensor& found_inf, const at::Tensor& flag, c10::Device device) {
  const auto own = skip_flag(flag, device);
  return found_inf.defined() ? at::max(own, skip_flag(found_inf, device)) : own;
}

void check_slots(const std::vector<ParamGroup>& groups) {
  for (const auto& group : groups)
    for (const auto& slot : group.slots)
      TRIREME_CHECK(slot.value.defined() && slot.value.is_floating_point() && slot.value.is_non_overlapping_and_dense(),
                    "{}: optimizers update only dense floating-point tensors", slot.name);
}

std::string special(const std::vector<ParamGroup>& groups) {
  for (const auto& group : groups)
    if (group.label == "no_decay") return fmt::format(", none on {} tensors", group.slots.size());
  return "";
}

}  // namespace trireme::optim::detail
