#include "core/comm/engine/staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>

namespace trireme::comm::engine {

at::Tensor Staging::stage(const at::Tensor& tensor, bool reads, bool writes) {
  if (tensor.is_cpu() && tensor.is_contiguous()) return tensor;
  const auto plain = tensor.detach();  // autograd must not record these copies
  const bool device = !tensor.is_cpu();
  auto host =
      at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU).pinned_memory(device));
  if (reads) host.copy_(plain, /*non_blocking=*/device);
  // An output is waited for too, because the current stream may still use the old values.
  if (device && std::find(devices_.begin(), devices_.end(), tensor.device()) == devices_.end())
    devices_.push_back(tensor.device());
  if (writes) back_.emplace_back(host, plain);
  return host;
}

std::function<bool()> Staging::ready() {
  if (devices_.empty()) return {};
  auto events = std::make_shared<std::vector<c10::Event>>();
  for (const auto& device : devices_) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    events->emplace_back(device.type());
    events->back().record(guard.getStream(device));
  }
  return
      [events] { return std::all_of(events->begin(), events->end(), [](const auto& event) { return event.query(); }); };
}

std::function<void()> Staging::finish() {
  if (back_.empty()) return {};
  return [pairs = std::move(back_)] {
    for (const auto& [host, tensor] : pairs) {
      // A blocking copy, because a thread that sees the operation complete may use the tensor on any stream.
      const c10::OptionalDeviceGuard guard(tensor.is_cpu() ? std::nullopt : std::optional(tensor.device()));
      tensor.copy_(host);
    }
  };
}

}  // namespace trireme::comm::engine
