#include "core/comm/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::comm {
namespace {

using Axes = std::vector<std::pair<std::string, int>>;

std::string product(const Axes& axes) {
  std::vector<std::string> factors;
  for (const auto& [name, size] : axes) factors.push_back(fmt::format("{} {}", name, size));
  return fmt::format("{}", fmt::join(factors, " x "));
}

/// The coordinates of a rank, row-major: the last axis varies fastest.
std::vector<int> coordinates(const Axes& axes, int rank) {
  std::vector<int> at(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    at[i] = rank % axes[i].second;
    rank /= axes[i].second;
  }
  return at;
}

/// The axis to change so that the formula holds: the first whose new size is an integer; the data-parallel one if
/// possible.
std::string remedy(const Axes& axes, int world_size, std::int64_t total) {
  for (const auto& [name, size] : axes) {
    const auto others = total / size;
    if (others > 0 && world_size % others == 0)
      return fmt::format("set {} to {}, or start {}", name, world_size / others, text::counted(total, "rank"));
  }
  return fmt::format("start {}, or choose sizes whose product is {}", text::counted(total, "rank"), world_size);
}

}  // namespace

void Mesh::validate(const Axes& axes, int world_size) {
  std::set<std::string> seen;
  std::int64_t total = 1;
  for (const auto& [name, size] : axes) {
    if (size < 1) throw ConfigError(fmt::format("the size of axis {} is {}; it must be 1 or more", name, size));
    if (!seen.insert(name).second) throw ConfigError(fmt::format("axis {} is given twice", name));
    total *= size;
  }
  if (total != world_size)
    throw ConfigError(fmt::format("{} = {}, but the world has {}; {}", product(axes), total,
                                  text::counted(world_size, "rank"), remedy(axes, world_size, total)));
}

Mesh::Mesh(World& world, Axes axes) : world_(world), axes_(std::move(axes)) {
  validate(axes_, world.size());
  for (const auto& [name, size] : axes_) (void)group(name);
}

std::vector<std::string> Mesh::axes() const {
  std::vector<std::string> names;
  for (const auto& [name, size] : axes_) names.push_back(name);
  return names;
}

bool Mesh::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const auto& entry) { return entry.first == axis; });
}

int Mesh::size(const std::string& axis) const {
  for (const auto& [name, size] : axes_)
    if (name == axis) return size;
  return 1;
}

int Mesh::coordinate(const std::string& axis) const {
  const auto at = coordinates(axes_, world_.rank());
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].first == axis) return at[i];
  return 0;
}

const Group& Mesh::group(const std::string& axis) { return group(std::vector<std::string>{axis}); }

const Group& Mesh::group(const std::vector<std::string>& axes) {
  if (const auto found = groups_.find(axes); found != groups_.end()) return found->second;
  // Requests are normalized to the mesh's order, without axes of one rank, so that ("dp", "sp") with sp = 1 is the dp
  // group itself.
  const auto asked = [&](const std::string& name) { return std::find(axes.begin(), axes.end(), name) != axes.end(); };
  std::vector<std::string> names;
  for (const auto& [name, size] : axes_)
    if (size > 1 && asked(name)) names.push_back(name);
  if (names.empty())
    return groups_.emplace(axes, Group::alone(fmt::format("{}", fmt::join(axes, "_")), world_.rank(), nullptr))
        .first->second;
  if (names != axes) {
    const auto& same = group(names);
    return groups_.emplace(axes, same).first->second;
  }

  return groups_.emplace(axes, make(names)).first->second;
}

Group Mesh::another(const std::string& axis) {
  return size(axis) == 1 ? Group::alone(axis, world_.rank(), nullptr) : make({axis});
}

Group Mesh::make(const std::vector<std::string>& names) const {
  const auto others_of = [&](int rank) {
    auto at = coordinates(axes_, rank);
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (std::find(names.begin(), names.end(), axes_[i].first) != names.end()) at[i] = 0;
    return at;
  };
  const auto here = others_of(world_.rank());
  std::vector<int> mine;
  for (int rank = 0; rank < world_.size(); ++rank)
    if (others_of(rank) == here) mine.push_back(rank);
  return world_.partition(mine, fmt::format("{}", fmt::join(names, "_")));
}

std::string Mesh::formula() const { return fmt::format("{} = {}", world_.size(), product(axes_)); }

}  // namespace trireme::comm
