#include "core/train/readback.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::train {

void Readback::add(const std::vector<at::Tensor>& tensors, Then then) {
  const auto device = tensors.front().device();
  std::vector<at::Tensor> doubles;
  for (const auto& tensor : tensors)
    doubles.push_back(tensor.defined() ? tensor.detach().to(at::kDouble).reshape({-1})
                                       : at::zeros({1}, at::TensorOptions(at::kDouble).device(device)));
  auto numbers = at::cat(doubles);
  Pending pending{numbers, nullptr, std::move(then)};
  if (!device.is_cpu()) {
    pending.host = at::empty_like(numbers, at::TensorOptions().device(at::kCPU).pinned_memory(true));
    pending.host.copy_(numbers, /*non_blocking=*/true);
    pending.event = std::make_unique<c10::Event>(device.type());
    pending.event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  pending_.push_back(std::move(pending));
  poll();
}

void Readback::finish_front(bool wait) {
  auto pending = std::move(pending_.front());
  pending_.pop_front();
  if (pending.event && wait) pending.event->synchronize();
  const auto* values = pending.host.const_data_ptr<double>();
  pending.then(std::vector<double>(values, values + pending.host.numel()));
}

void Readback::poll() {
  while (!pending_.empty()) {
    const bool ready = !pending_.front().event || pending_.front().event->query();
    if (!ready && pending_.size() <= kLag) return;
    finish_front(!ready);
  }
}

void Readback::drain_to(std::size_t left) {
  while (pending_.size() > left) finish_front(true);
}

}  // namespace trireme::train
