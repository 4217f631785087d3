#include "core/comm/text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstring>

namespace trireme::comm {

std::vector<std::string> gather_text(const Group& group, c10::Device device, const std::string& text) {
  const auto number = [&](std::int64_t n) { return at::full({1}, n, at::TensorOptions(at::kLong).device(device)); };
  auto sizes = at::empty({group.size()}, at::TensorOptions(at::kLong).device(device));
  group.all_gather_into(sizes, number(static_cast<std::int64_t>(text.size())));
  sizes = sizes.to(at::kCPU);
  std::vector<at::Tensor> parts;
  for (int r = 0; r < group.size(); ++r)
    parts.push_back(at::empty({sizes[r].item<std::int64_t>()}, at::TensorOptions(at::kByte).device(device)));
  auto mine = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  group.all_gather(parts, mine.to(device));
  std::vector<std::string> out;
  for (const auto& part : parts) {
    const auto host = part.to(at::kCPU);
    out.emplace_back(static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(host.numel()));
  }
  return out;
}

}  // namespace trireme::comm
