#include "core/comm/text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <cstring>

namespace trireme::comm {
namespace {

constexpr std::int64_t kLength = sizeof(std::int64_t);  // of the number before a text

at::Tensor number(std::int64_t n, c10::Device device) {
  return at::full({1}, n, at::TensorOptions(at::kLong).device(device));
}

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

std::vector<std::string> gather_text(const Group& group, c10::Device device, const std::string& text) {
  const auto size = static_cast<std::int64_t>(text.size());
  auto longest = number(size, device);
  group.all_reduce(longest, ReduceOp::max);
  // One size for all: NCCL gathers nothing else.
  auto mine = at::zeros({kLength + longest.item<std::int64_t>()}, at::kByte);
  auto* const start = static_cast<std::byte*>(mine.data_ptr());
  std::memcpy(start, &size, sizeof size);
  std::memcpy(start + kLength, text.data(), text.size());
  std::vector<at::Tensor> all;
  if (group.rank() == 0)
    for (int r = 0; r < group.size(); ++r)
      all.push_back(at::empty(mine.sizes(), at::TensorOptions(at::kByte).device(device)));
  group.gather(all, mine.to(device), 0);
  std::vector<std::string> out;
  for (const auto& part : all) {
    const auto host = part.to(at::kCPU);
    const auto* begin = static_cast<const char*>(host.const_data_ptr());
    std::int64_t length = 0;
    std::memcpy(&length, begin, sizeof length);
    out.emplace_back(begin + kLength, static_cast<std::size_t>(length));
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
