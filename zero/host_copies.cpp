#include "zero/host_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace trireme::zero {

void HostCopies::begin(std::size_t key, const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  drop(key);
  const auto device = tensor.device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!beside_) beside_ = guard.getStreamFromGlobalPool(device);
  c10::Event ready(device.type());
  ready.record(guard.getStream(device));
  ready.block(*beside_);
  Copy copy{tensor, at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true)),
            c10::Event(device.type())};
  {
    const c10::StreamGuard on_it(*beside_);
    copy.to.copy_(tensor, /*non_blocking=*/true);
  }
  copy.arrived.record(*beside_);
  copies_.emplace(key, std::move(copy));
}

at::Tensor HostCopies::wait(std::size_t key, const at::Tensor& tensor) {
  const auto found = copies_.find(key);
  if (found == copies_.end()) return tensor.cpu();
  found->second.arrived.synchronize();
  auto arrived = found->second.to;
  copies_.erase(found);
  return arrived;
}

void HostCopies::drop(std::size_t key) {
  const auto found = copies_.find(key);
  if (found == copies_.end()) return;
  // What comes after may write to, or take, the memory that is still being read.
  const auto device = found->second.from.device();
  found->second.arrived.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  copies_.erase(found);
}

}  // namespace trireme::zero
