#include "core/nn/layer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/nn/autograd/recompute.h"

namespace trireme::nn {

void Layer::declare(const std::string& name, at::Tensor& member, std::vector<std::int64_t> shape, shard::Init init,
                    at::MemoryFormat format) {
  member = register_parameter(name, at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(at::kFloat)), true);
  declared_.push_back({name, init, &member, shard::Placement::whole("", std::move(shape)), format});
}

void Layer::store_transposed(const std::string& name) {
  auto& placement = find(name).placement;
  TRIREME_REQUIRE(placement.stored_unstacked.empty(), "\"{}\" cannot be stored both transposed and unstacked", name);
  placement.stored_transposed = true;
}

void Layer::store_unstacked(const std::string& name, const std::string& pattern) {
  auto& placement = find(name).placement;
  TRIREME_REQUIRE(std::count(pattern.begin(), pattern.end(), '*') == 1, "\"{}\" must have one '*'", pattern);
  TRIREME_REQUIRE(placement.shape.size() > 1 && placement.full_numel() > 0 && placement.shape[0] <= shard::kMostParts &&
                      !placement.stored_transposed,
                  "\"{}\" cannot be stored unstacked: it must have at least two dims, elements, at most {} indices of "
                  "dim 0, and not be stored transposed",
                  name, shard::kMostParts);
  for (const auto& other : declared_)
    TRIREME_REQUIRE(other.placement.stored_unstacked != pattern, "\"{}\" and \"{}\" would both be stored as \"{}\"",
                    other.name, name, pattern);
  placement.stored_unstacked = pattern;
}

Layer::Declared& Layer::find(const std::string& name) {
  const auto found = std::find_if(declared_.begin(), declared_.end(), [&](const auto& d) { return d.name == name; });
  if (found != declared_.end()) return *found;
  std::vector<std::string> known;
  for (const auto& declared : declared_) known.push_back(declared.name);
  throw UsageError(
      fmt::format("the layer \"{}\" declares no parameter \"{}\" (known: {})", path_, name, text::join(known)));
}

void Layer::cut(const std::string& name, std::int64_t dim, std::vector<shard::Range> ranges, const std::string& axis) {
  auto& declared = find(name);
  TRIREME_REQUIRE(declared.member->is_meta(), "{}.{} cannot be cut: it has memory", path_, name);
  auto& placement = declared.placement;
  TRIREME_REQUIRE(0 <= dim && dim < std::ssize(placement.shape), "{}.{} has no dim {} to be cut along, but {} dims",
                  path_, name, dim, placement.shape.size());
  for (const auto& cut : placement.cuts)
    TRIREME_REQUIRE(cut.dim != dim && (axis.empty() || cut.axis != axis),
                    "{}.{} is cut along dim {} and axis \"{}\" already, and cannot be cut along dim {} and axis \"{}\"",
                    path_, name, cut.dim, cut.axis, dim, axis);
  const auto size = placement.shape[static_cast<std::size_t>(dim)];
  std::int64_t end = 0;
  for (const auto& range : ranges) {
    TRIREME_REQUIRE(end <= range.begin && range.begin <= range.end && range.end <= size,
                    "{}.{}: the range [{}, {}) of dim {} is not within its size, {}, and after the range before it",
                    path_, name, range.begin, range.end, dim, size);
    end = range.end;
  }
  placement.cut(dim, std::move(ranges), axis);
}

void Layer::set_storage(const std::string& name, at::Tensor value) {
  auto& declared = find(name);
  TRIREME_REQUIRE(value.sizes().vec() == declared.placement.local_shape(),
                  "{}.{}: the tensor does not have the placement's local shape", path_, name);
  // A leaf is used as it is: detach() would share its version counter with the tensor it came from.
  if (!value.is_leaf()) value = value.detach();
  value.set_requires_grad(declared.member->requires_grad());
  *declared.member = value;
  parameters_[name] = std::move(value);
}

void Layer::set_recompute(bool on) { TRIREME_CHECK(!on, "layer \"{}\" cannot be recomputed by itself", path_); }

void Unary::set_recompute(bool on) {
  if (!on) return forward.run_through({});
  forward.run_through([this](const auto& compute, const at::Tensor& x, const Context& context) {
    auto run = [self = shared_from_this(), compute, context](const Tensors& in) {
      return Tensors{compute(in[0], context)};
    };
    return run_recomputable({.run = std::move(run), .parameters = forward_parameters(), .buffers = buffers()}, {x})
        .front();
  });
}

}  // namespace trireme::nn
