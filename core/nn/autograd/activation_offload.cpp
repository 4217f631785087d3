#include "core/nn/autograd/activation_offload.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/planned_device.h"

namespace trireme::nn {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

/// Orders later work of `stream` after all work queued on the device's current stream.
void follow_current_stream(const c10::Stream& stream) {
  c10::Event ready(stream.device_type());
  ready.record(current_stream(stream.device()));
  ready.block(stream);
}

/// A tensor like `of` with its strides; in pinned memory if a GPU copies to it.
at::Tensor host_memory_like(const at::Tensor& of) {
  const memory::OfHost not_the_devices(type_of(of.device()) != c10::kCPU);
  const auto place = at::TensorOptions(host_of(of.device())).pinned_memory(of.is_cuda());
  return at::empty_like(of, place, at::MemoryFormat::Preserve);
}

}  // namespace

struct ActivationOffload::Saved {
  struct Input {
    at::Tensor source;  ///< on the device; undefined once its memory is released
    at::Tensor host;    ///< the copy; undefined for a tensor that stays on the device
    at::Tensor device;  ///< the copy of `host`; undefined unless it is prefetched
    c10::VariableVersion counter;
    std::uint32_t version;
  };
  explicit Saved(c10::Device on) : place(on) {
    if (!on.is_cuda()) return;
    copied.emplace(on.type());
    arrived.emplace(on.type());
  }
  ~Saved() {
    if (!place.is_cuda()) return;
    try {
      // Copies that nobody waited for still read or write memory that is about to be released.
      if (!is_released) copied->block(current_stream(place));
      if (is_prefetched) arrived->block(current_stream(place));
    } catch (const c10::Error&) {  // the device has failed; whoever uses it next reports that
    }
  }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  c10::Device place;
  std::vector<Input> inputs;
  std::optional<c10::Event> copied, arrived;  ///< the copies to the host, and back to the device, are complete
  bool is_released = false, is_prefetched = false, is_restored = false;
  std::weak_ptr<Saved> before;  ///< the one that was saved before this one, whose backward pass probably follows
};

ActivationOffload::ActivationOffload(c10::Device device) : device_(device) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  to_host_ = guard.getStreamFromGlobalPool(device);
  to_device_ = guard.getStreamFromGlobalPool(device);
}

std::shared_ptr<ActivationOffload::Saved> ActivationOffload::save(const std::vector<at::Tensor>& inputs) {
  auto saved = std::make_shared<Saved>(device_);
  if (const auto last = last_.lock()) release_source(*last);
  if (to_host_) follow_current_stream(*to_host_);
  {
    const c10::OptionalStreamGuard on_it(to_host_);
    for (const auto& input : inputs) {
      const auto& counter = torch::autograd::impl::version_counter(input);
      auto& entry =
          saved->inputs.emplace_back(Saved::Input{input.detach(), {}, {}, counter, counter.current_version()});
      if (!input.is_floating_point() || input.device() != device_) continue;
      entry.host = host_memory_like(input);
      entry.host.copy_(entry.source, /*non_blocking=*/true);
    }
  }
  if (to_host_) saved->copied->record(*to_host_);
  saved->before = last_;
  last_ = saved;
  return saved;
}

/// Gives back the memory of the sources. Work that the current stream does from now on may reuse it.
void ActivationOffload::release_source(Saved& saved) const {
  if (std::exchange(saved.is_released, true)) return;
  if (saved.copied) saved.copied->block(current_stream(device_));
  for (auto& input : saved.inputs)
    if (input.host.defined()) input.source.reset();
}

void ActivationOffload::begin_restore(Saved& saved) const {
  if (!saved.is_released || std::exchange(saved.is_prefetched, true)) return;
  // The memory is the current stream's, which may still use it for earlier work.
  for (auto& input : saved.inputs)
    if (input.host.defined())
      input.device = at::empty_like(input.host, at::TensorOptions(device_), at::MemoryFormat::Preserve);
  if (to_device_) {
    follow_current_stream(*to_device_);
    saved.copied->block(*to_device_);
  }
  const c10::OptionalStreamGuard on_it(to_device_);
  for (auto& input : saved.inputs)
    if (input.host.defined()) input.device.copy_(input.host, /*non_blocking=*/true);
  if (to_device_) saved.arrived->record(*to_device_);
}

std::vector<at::Tensor> ActivationOffload::restore(Saved& saved) {
  for (const auto& input : saved.inputs)
    TRIREME_REQUIRE(input.counter.current_version() == input.version,
                    "a block's input was changed in place after it was saved for recompute; let the block that changes "
                    "it work on a copy, or set train.recompute = false");
  begin_restore(saved);
  if (saved.is_prefetched && saved.arrived) saved.arrived->block(current_stream(device_));
  std::vector<at::Tensor> out;
  for (auto& input : saved.inputs)
    out.push_back(input.source.defined() ? input.source : std::exchange(input.device, {}));
  saved.is_prefetched = false;  // a second backward pass of a retained graph copies again
  saved.is_restored = true;
  // In a pipeline, the one before may be another microbatch's, whose backward pass was earlier.
  if (const auto before = saved.before.lock(); before && !before->is_restored) begin_restore(*before);
  return out;
}

}  // namespace trireme::nn
