#include "core/checkpoint/weights/unused_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::checkpoint {

std::string without_numbers(const std::string& name) {
  std::string out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (begin > 0 ? "." : "") + (number ? std::string("*") : part);
    begin = end + 1;
  }
  return out;
}

void check_depth(const std::vector<std::string>& unused, const std::set<std::string>& kinds, const std::string& path) {
  std::vector<std::string> of_layers;
  for (const auto& name : unused)
    if (kinds.count(without_numbers(name)) != 0) of_layers.push_back(name);
  if (of_layers.empty()) return;
  throw CheckpointError(fmt::format(
      "{}: {} of layers that this model does not have: {}; set the model's number of layers in [model] to "
      "that of the weights, or choose weights of this size",
      path, text::quantity(static_cast<std::int64_t>(of_layers.size()), "tensor"), text::first_few(of_layers)));
}

void check_adapters(const std::vector<std::string>& unused, const std::string& path, bool are_adapters) {
  if (are_adapters && !unused.empty())
    throw CheckpointError(
        fmt::format("{}: {} of layers that have no adapters here: {}; check target and train of "
                    "[lora]",
                    path, text::quantity(static_cast<std::int64_t>(unused.size()), "tensor"), text::first_few(unused)));
  const auto adapter = std::find_if(unused.begin(), unused.end(),
                                    [](const auto& name) { return name.find(".lora_A.") != std::string::npos; });
  if (adapter != unused.end())
    throw CheckpointError(
        fmt::format("{}: these weights have adapters ({}), but the model has none; add the section [lora] with which "
                    "they were trained",
                    path, *adapter));
}

}  // namespace trireme::checkpoint
