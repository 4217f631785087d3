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

std::string text_of(const at::Tensor& bytes, std::int64_t length) {
  const auto host = bytes.to(at::kCPU).contiguous();
  return {static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(length)};
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
  for (std::size_t r = 0; r < all.size(); ++r) out.push_back(text_of(all[r], lengths[r]));
  return out;
}

std::vector<std::string> all_gather_text(const Group& group, c10::Device device, const std::string& text) {
  const auto ranks = group.size();
  const auto length = static_cast<std::int64_t>(text.size());
  auto lengths = at::empty({ranks}, at::TensorOptions(at::kLong).device(device));
  group.all_gather_into(lengths, number(length, device));
  lengths = lengths.cpu();
  const auto longest = lengths.max().item<std::int64_t>();
  auto all = at::empty({ranks, longest}, at::TensorOptions(at::kByte).device(device));
  group.all_gather_into(all, at::constant_pad_nd(bytes_of(text), {0, longest - length}).to(device));
  std::vector<std::string> out;
  for (std::int64_t r = 0; r < ranks; ++r) out.push_back(text_of(all[r], lengths[r].item<std::int64_t>()));
  return out;
}

std::string broadcast_text(const Group& group, c10::Device device, const std::string& text, int root) {
  auto size = number(static_cast<std::int64_t>(text.size()), device);
  group.broadcast(size, root);
  auto bytes = group.rank() == root
                   ? bytes_of(text).to(device)
                   : at::empty({size.item<std::int64_t>()}, at::TensorOptions(at::kByte).device(device));
  group.broadcast(bytes, root);
  return text_of(bytes, bytes.numel());
}

}  // namespace trireme::comm
