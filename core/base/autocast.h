// Autocast of the calling thread: LibTorch's, and the same for a planned device, whose tensors LibTorch's passes over.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace trireme {

/// The autocast state of the calling thread for one type of device.
struct AutocastState {
  c10::DeviceType device = c10::kCPU;
  bool enabled = false;
  at::ScalarType dtype = at::kFloat;
  static AutocastState current(c10::DeviceType device);
  void apply() const;
};

/// Frees the copies of weights that autocast has cast.
void clear_autocast_cache();

/// Operators of a thread pass through this dispatch key while autocast is enabled for the device that it plans. No
/// device of this process uses the key. MetaKernels has its kernels; without them autocast leaves tensors as they are.
constexpr c10::DispatchKey kPlannedAutocast = c10::DispatchKey::AutocastPrivateUse1;
/// Whether autocast applies to a tensor of the planned device.
bool is_planned_autocast_eligible(const at::Tensor& x);
/// The tensor in `dtype` if autocast applies to it. Weights are cast once until the cache is cleared, as by LibTorch.
at::Tensor planned_autocast(const at::Tensor& x, at::ScalarType dtype);

}  // namespace trireme
