#include "core/shard/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace trireme::shard {

/// Whether this rank's slice counts in a sum over `axes`: of the copies along an axis, only the one at coordinate 0.
static bool counts_here(const Placement& placement, comm::Mesh& mesh, const std::vector<std::string>& axes) {
  return std::all_of(axes.begin(), axes.end(), [&](const std::string& axis) {
    return placement.differs_along(axis) || mesh.coordinate(axis) == 0;
  });
}

at::Tensor global_norm(const std::vector<PlacedTensor>& tensors, comm::Mesh& mesh, const std::vector<std::string>& axes,
                       double power) {
  TRIREME_CHECK(power == 2 || std::isinf(power), "unsupported norm of power {}", power);
  for (const auto& axis : mesh.axes()) {
    if (mesh.size(axis) == 1 || std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    for (const auto& t : tensors)
      TRIREME_CHECK(!t.placement->differs_along(axis), "{} differs along axis {}, over which the norm is not summed",
                    t.placement->name, axis);
  }

  std::vector<at::Tensor> contributing, copies;
  for (const auto& t : tensors) {
    if (!t.tensor.defined() || t.tensor.numel() == 0) continue;
    const bool counts = !t.placement->copy && counts_here(*t.placement, mesh, axes);
    (counts ? contributing : copies).push_back(t.tensor);
  }
  const bool is_double = std::any_of(tensors.begin(), tensors.end(), [](const PlacedTensor& t) {
    return t.tensor.defined() && t.tensor.scalar_type() == at::kDouble;
  });
  const auto type = is_double ? at::kDouble : at::kFloat;
  at::Tensor norm;
  if (contributing.empty())
    norm = at::zeros({}, at::TensorOptions().dtype(type).device(mesh.world().device()));
  else
    norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(contributing, power, type)), power);
  const auto& group = mesh.group(axes);
  if (group.size() == 1) return norm;
  // Copies add nothing, unless one of them alone is not finite: no rank may then use its own.
  if (!copies.empty()) norm = norm + at::stack(at::_foreach_norm(copies, INFINITY, type)).sum() * 0;
  // float64 for every dtype: a rank without tensors does not know the dtype of the others.
  norm = norm.to(at::kDouble);
  if (power != 2) {
    // A max reduction may drop a NaN, but not infinity.
    norm = at::where(at::isfinite(norm), norm, INFINITY);
    group.all_reduce(norm, comm::ReduceOp::max);
    return norm;
  }
  norm = norm.square_();
  group.all_reduce(norm);
  return norm.sqrt_();
}

void sum_over_slices(const at::Tensor& values, const std::vector<const Placement*>& placements, comm::Mesh& mesh,
                     const std::vector<std::string>& axes) {
  const auto& group = mesh.group(axes);
  if (group.size() == 1) return;
  for (std::size_t i = 0; i < placements.size(); ++i)
    if (!counts_here(*placements[i], mesh, axes)) values.select(0, static_cast<std::int64_t>(i)).zero_();
  group.all_reduce(values);
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) { return (max_norm / (norm + 1e-6)).clamp_max(1.0); }

}  // namespace trireme::shard
