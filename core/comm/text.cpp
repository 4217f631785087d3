#include "core/comm/text.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <cstring>

namespace trireme::comm {
namespace {

at::Tensor number(std::int64_t n, c10::Device device) {
  return at::full({1}, n, at::TensorOptions(at::kLong).device(device));
}

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

/// Gathers every rank's tensor on rank 0; `sizes`: their numbers of elements, on rank 0.
std::vector<at::Tensor> gather(const Group& group, const at::Tensor& mine, const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> all;
  for (const auto size : sizes) all.push_back(at::empty({size}, mine.options()));
  group.gather(all, mine, 0);
  return all;
}

}  // namespace

std::vector<std::string> gather_text(const Group& group, c10::Device device, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(group.rank() == 0 ? group.size() : 0);
  auto bytes = bytes_of(text);
  std::vector<std::int64_t> lengths;
  for (const auto& length : gather(group, number(bytes.numel(), device), std::vector<std::int64_t>(ranks, 1)))
    lengths.push_back(length.item<std::int64_t>());
  auto sizes = lengths;
  if (device.is_cuda()) {  // NCCL gathers only tensors of equal size
    auto longest = number(bytes.numel(), device);
    group.all_reduce(longest, ReduceOp::max);
    const auto size = longest.item<std::int64_t>();
    bytes = at::constant_pad_nd(bytes, {0, size - bytes.numel()}).to(device);
    sizes.assign(ranks, size);
  }
  std::vector<std::string> out;
  const auto all = gather(group, bytes, sizes);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto host = all[r].to(at::kCPU);
    out.emplace_back(static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(lengths[r]));
  }
  return out;
}

std::string broadcast_text(const Group& group, c10::Device device, const std::string& text) {
  auto size = number(static_cast<std::int64_t>(text.size()), device);
  group.broadcast(size, 0);
  auto bytes = group.rank() == 0 ? bytes_of(text).to(device)
                                 : at::empty({size.item<std::int64_t>()}, at::TensorOptions(at::kByte).device(device));
  group.broadcast(bytes, 0);
  const auto host = bytes.to(at::kCPU);
  return {static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(host.numel())};
}

}  // namespace trireme::comm
