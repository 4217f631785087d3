#include "core/data/device_copy.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::data {

struct PendingCopies::State {
  explicit State(const c10::Stream& stream) : done(stream.device_type()) {}
  mutable c10::Event done;  ///< block() is not const
  std::vector<at::Tensor> copies;
};

void PendingCopies::wait() const {
  if (!state_) return;
  for (const auto& copy : state_->copies) {
    const auto current = c10::impl::VirtualGuardImpl(copy.device().type()).getStream(copy.device());
    state_->done.block(current);
    copy.record_stream(current);
  }
}

DeviceCopy::DeviceCopy(c10::Device device) : device_(device) {
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

PendingCopies DeviceCopy::start(const std::vector<at::Tensor*>& tensors) const {
  PendingCopies pending;
  if (!stream_) return pending;
  const c10::StreamGuard guard(*stream_);
  auto state = std::make_shared<PendingCopies::State>(*stream_);
  for (auto* tensor : tensors) {
    *tensor = tensor->to(device_, /*non_blocking=*/true);
    state->copies.push_back(*tensor);
  }
  state->done.record(*stream_);
  pending.state_ = std::move(state);
  return pending;
}

}  // namespace trireme::data
