#include "zero/host_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/base/planned_device.h"

namespace trireme::zero {
namespace {

/// Orders `stream` after all work queued on the device's current stream. Takes a stream from the pool if there is none
/// yet.
void follow_current(std::optional<c10::Stream>& stream, c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!stream) stream = guard.getStreamFromGlobalPool(device);
  c10::Event ready(device.type());
  ready.record(guard.getStream(device));
  ready.block(*stream);
}

}  // namespace

void HostCopies::begin(std::size_t key, const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return;
  drop(key);
  follow_current(beside_, tensor.device());
  Copy copy{tensor, at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true)),
            c10::Event(tensor.device().type())};
  {
    const c10::StreamGuard on_it(*beside_);
    copy.to.copy_(tensor, /*non_blocking=*/true);
  }
  copy.arrived.record(*beside_);
  copies_.emplace(key, std::move(copy));
}

at::Tensor HostCopies::wait(std::size_t key, const at::Tensor& tensor) {
  const auto found = copies_.find(key);
  if (found == copies_.end()) return tensor.to(host_of(tensor.device()));
  found->second.arrived.synchronize();
  auto arrived = found->second.to;
  copies_.erase(found);
  return arrived;
}

void HostCopies::drop(std::size_t key) {
  const auto found = copies_.find(key);
  if (found == copies_.end()) return;
  // Later work may overwrite or reuse the memory that the copy still reads.
  const auto device = found->second.from.device();
  found->second.arrived.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  copies_.erase(found);
}

void DeviceCopies::begin(std::size_t key, const at::Tensor& from, const at::Tensor& to,
                         const std::function<void()>& then) {
  const auto device = to.device();
  if (!device.is_cuda()) {
    to.copy_(from);
    return then();
  }
  follow_current(beside_, device);
  const c10::StreamGuard on_it(*beside_);
  to.copy_(from, /*non_blocking=*/true);
  c10::Event arrived(device.type());
  arrived.record(*beside_);
  copy_events_.insert_or_assign(key, std::pair(device, std::move(arrived)));
  then();
}

void DeviceCopies::wait(std::size_t key) {
  const auto found = copy_events_.find(key);
  if (found == copy_events_.end()) return;
  const auto& [device, event] = found->second;
  event.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  copy_events_.erase(found);
}

}  // namespace trireme::zero
