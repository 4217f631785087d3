#include "core/checkpoint/host_staging.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/base/error.h"
#include "core/base/host_memory.h"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes, for vectorized copies

std::int64_t room_for(const at::Tensor& value) {
  return (static_cast<std::int64_t>(value.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::int64_t HostStaging::bytes_for(const std::vector<shard::Slice>& slices) {
  std::int64_t bytes = 0;
  for (const auto& slice : slices) bytes += room_for(slice.value);
  return bytes;
}

void HostStaging::reserve(std::int64_t bytes, c10::Device device) {
  if (bytes <= capacity()) return;
  memory_.reset();  // before the new memory is allocated
  memory_ = memory::host_zeros(bytes, at::kByte, device, /*pinned=*/true);
}

void HostStaging::clear() {
  used_ = 0;
  copied_.reset();
}

void HostStaging::copy(std::vector<shard::Slice>& slices) {
  const at::NoGradGuard no_grad;
  for (auto& [placement, value] : slices) {
    const auto source = value.detach();
    TRIREME_CHECK(used_ + room_for(source) <= capacity(), "{} does not fit into the memory for copies", placement.name);
    value = at::from_blob(memory_.mutable_data_ptr<std::uint8_t>() + used_, source.sizes(),
                          at::TensorOptions(source.scalar_type()));
    used_ += room_for(source);
    if (source.numel() == 0) continue;
    value.copy_(source, /*non_blocking=*/true);
    if (source.is_cpu()) continue;
    const auto device = source.device();
    if (!copied_) copied_ = std::make_unique<c10::Event>(device.type());
    copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void HostStaging::wait() const {
  if (copied_) copied_->synchronize();
}

}  // namespace trireme::checkpoint
