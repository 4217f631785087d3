#include "core/comm/mesh.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::comm {
namespace {

std::string product(const Axes& axes) {
  std::vector<std::string> factors;
  for (const auto& axis : axes) factors.push_back(fmt::format("{} {}", axis.kind.name, axis.size));
  return fmt::format("{}", fmt::join(factors, " x "));
}

/// The coordinates of a rank, row-major: the last axis varies fastest.
std::vector<int> coordinates(const Axes& axes, int rank) {
  std::vector<int> at(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    at[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return at;
}

/// The axis to change so that the formula holds: the first whose new size is an integer; the data-parallel one if
/// possible.
std::string remedy(const Axes& axes, int world_size, std::int64_t total) {
  for (const auto& axis : axes) {
    const auto others = total / axis.size;
    const auto& kind = axis.kind;
    if (others > 0 && world_size % others == 0)
      return fmt::format("set {} to {}, or start {}",
                         kind.key.empty() && !kind.option.empty() ? kind.option : kind.name, world_size / others,
                         text::quantity(total, "rank"));
  }
  return fmt::format("start {}, or choose sizes whose product is {}", text::quantity(total, "rank"), world_size);
}

}  // namespace

void Mesh::validate(const Axes& axes, int world_size) {
  std::set<std::string> seen;
  std::int64_t total = 1;
  for (const auto& [kind, size] : axes) {
    const auto& name = kind.name;
    if (size < 1) throw ConfigError(fmt::format("the size of axis {} is {}; it must be 1 or more", name, size));
    if (!seen.insert(name).second) throw ConfigError(fmt::format("axis {} is given twice", name));
    total *= size;
  }
  if (total != world_size)
    throw ConfigError(fmt::format("{} = {}, but the world has {}; {}", product(axes), total,
                                  text::quantity(world_size, "rank"), remedy(axes, world_size, total)));
}

Mesh::Mesh(World& world, Axes axes) : world_(world), axes_(std::move(axes)) {
  validate(axes_, world.size());
  connect(world.group());
  for (const auto& axis : axes_) (void)group(axis.kind.name);
}

std::vector<std::string> Mesh::axes() const {
  std::vector<std::string> names;
  for (const auto& axis : axes_) names.push_back(axis.kind.name);
  return names;
}

std::vector<std::string> Mesh::axes(bool AxisKind::*property) const {
  std::vector<std::string> names;
  for (const auto& axis : axes_)
    if (axis.kind.*property) names.push_back(axis.kind.name);
  return names;
}

bool Mesh::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const auto& entry) { return entry.kind.name == axis; });
}

int Mesh::size(const std::string& axis) const {
  for (const auto& entry : axes_)
    if (entry.kind.name == axis) return entry.size;
  return 1;
}

int Mesh::coordinate(const std::string& axis) const {
  const auto at = coordinates(axes_, world_.rank());
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].kind.name == axis) return at[i];
  return 0;
}

const Group& Mesh::group(const std::string& axis) { return group(std::vector<std::string>{axis}); }

const Group& Mesh::group(const std::vector<std::string>& axes) {
  if (const auto found = groups_.find(axes); found != groups_.end()) return found->second;
  // Requests are normalized to the mesh's order, without axes of one rank, so that ("dp", "sp") with sp = 1 is the dp
  // group itself.
  const auto asked = [&](const std::string& name) { return std::find(axes.begin(), axes.end(), name) != axes.end(); };
  std::vector<std::string> names;
  for (const auto& axis : axes_)
    if (axis.size > 1 && asked(axis.kind.name)) names.push_back(axis.kind.name);
  if (names.empty())
    return groups_.emplace(axes, Group::alone(fmt::format("{}", fmt::join(axes, "_")), world_.rank(), nullptr))
        .first->second;
  if (names != axes) {
    const auto& same = group(names);
    return groups_.emplace(axes, same).first->second;
  }

  const auto& made = groups_.emplace(axes, make(names)).first->second;
  connect(made);
  return made;
}

void Mesh::connect(const Group& group) const {
  if (!world_.device().is_cuda() || size("pp") == 1 || group.size() == 1) return;
  group.all_reduce(at::zeros({1}, world_.device()));
}

Group Mesh::separate_group(const std::string& axis) {
  return size(axis) == 1 ? Group::alone(axis, world_.rank(), nullptr) : make({axis});
}

std::vector<int> Mesh::ranks_along(const std::vector<std::string>& names) const {
  const auto others_of = [&](int rank) {
    auto at = coordinates(axes_, rank);
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (std::find(names.begin(), names.end(), axes_[i].kind.name) != names.end()) at[i] = 0;
    return at;
  };
  const auto own = others_of(world_.rank());
  std::vector<int> mine;
  for (int rank = 0; rank < world_.size(); ++rank)
    if (others_of(rank) == own) mine.push_back(rank);
  return mine;
}

Group Mesh::make(const std::vector<std::string>& names) const {
  return world_.partition(ranks_along(names), fmt::format("{}", fmt::join(names, "_")));
}

std::string Mesh::formula() const { return fmt::format("{} = {}", world_.size(), product(axes_)); }

}  // namespace trireme::comm
