#include "core/nn/layer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"

namespace trireme::nn {

void Layer::declare(const std::string& name, at::Tensor& member, std::vector<std::int64_t> shape, shard::Init init) {
  member = register_parameter(name, at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(at::kFloat)), true);
  declared_.push_back({name, std::move(shape), init, &member, {}});
}

void Layer::place(const std::string& name, at::Tensor value, std::optional<shard::Placement> placement) {
  const auto found = std::find_if(declared_.begin(), declared_.end(), [&](const auto& d) { return d.name == name; });
  TRIREME_CHECK(found != declared_.end(), "layer \"{}\" declares no parameter \"{}\"", path_, name);
  // A leaf is taken as it is: detach() would tie its version counter to the tensor it came from.
  if (!value.is_leaf()) value = value.detach();
  value.set_requires_grad(found->member->requires_grad());
  *found->member = value;
  parameters_[name] = std::move(value);
  found->placement = std::move(placement);
}

}  // namespace trireme::nn
