#include "core/nn/named_tensors.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::nn {

const at::Tensor& NamedTensors::operator[](std::string_view name) const {
  const auto* found = find(name);
  TRIREME_REQUIRE(found != nullptr,
                  "there is no tensor \"{}\" (there are: {}); the data set must have it, under this name", name,
                  items_.empty() ? "none" : text::join(names()));
  return *found;
}

const at::Tensor* NamedTensors::find(std::string_view name) const {
  const auto found = std::find_if(items_.begin(), items_.end(), [&](const Item& item) { return item.first == name; });
  return found == items_.end() ? nullptr : &found->second;
}

const at::Tensor& NamedTensors::front() const {
  TRIREME_REQUIRE(!items_.empty(), "there are no tensors");
  return items_.front().second;
}

void NamedTensors::set(std::string_view name, at::Tensor value) {
  for (auto& [known, tensor] : items_)
    if (known == name) {
      tensor = std::move(value);
      return;
    }
  items_.emplace_back(name, std::move(value));
}

std::vector<std::string> NamedTensors::names() const {
  std::vector<std::string> out;
  for (const auto& item : items_) out.push_back(item.first);
  return out;
}

}  // namespace trireme::nn
