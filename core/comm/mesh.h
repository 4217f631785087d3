// Mesh: the layout of the world's ranks along named axes, validated once and passed to all users.
// "Axis" refers to the mesh (dp, pp, tp, sp), "dim" to tensors.
//
// Rank order is row-major over the axes as given, the last varying fastest:
//   {{"dp", 2}, {"pp", 1}, {"tp", 2}} -> rank = (dp * 1 + pp) * 2 + tp
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "core/comm/axes.h"
#include "core/comm/world.h"

namespace trireme::comm {

class Mesh {
 public:
  /// Collective over the world. @throws ConfigError with the formula and the remedy when the product of the sizes is
  /// not the world's size.
  Mesh(World& world, Axes axes);

  /// Only checks the formula, before any process group exists. @throws ConfigError.
  static void validate(const Axes& axes, int world_size);

  [[nodiscard]] std::vector<std::string> axes() const;  ///< the names of the axes, in the order of the ranks
  /// The names of the axes with a property: axes(&AxisKind::splits_samples).
  [[nodiscard]] std::vector<std::string> axes(bool AxisKind::*property) const;
  [[nodiscard]] bool has(const std::string& axis) const;
  [[nodiscard]] int size(const std::string& axis) const;        ///< 1 for an axis that the mesh does not have
  [[nodiscard]] int coordinate(const std::string& axis) const;  ///< of this rank; 0 for an axis it does not have
  /// The group of the ranks that differ from this one only along `axis`.
  [[nodiscard]] const Group& group(const std::string& axis);
  /// The same for several axes ("dp", "sp"); made at the first call (collective over the world), then cached. CommStats
  /// records it under the joined names: "dp_sp".
  [[nodiscard]] const Group& group(const std::vector<std::string>& axes);
  [[nodiscard]] const Group& group(std::initializer_list<const char*> axes) {
    return group(std::vector<std::string>(axes.begin(), axes.end()));  // braces alone would be read as an iterator
                                                                       // range
  }
  /// The same for the axes with a property: group(&AxisKind::splits_samples).
  [[nodiscard]] const Group& group(bool AxisKind::*property) { return group(axes(property)); }
  /// A separate group of the ranks of group(axis), whose calls do not wait for those of the other. Collective over the
  /// world.
  [[nodiscard]] Group separate_group(const std::string& axis);
  /// The ranks that differ from this one only along these axes, in order.
  [[nodiscard]] std::vector<int> ranks_along(const std::vector<std::string>& axes) const;
  [[nodiscard]] World& world() const { return world_; }
  [[nodiscard]] std::string formula() const;  ///< "4 = dp 2 x tp 2"

 private:
  /// The group of the ranks with the same coordinates on every axis except `names`. Collective over the world.
  [[nodiscard]] Group make(const std::vector<std::string>& names) const;
  /// With a pipeline on GPUs, connects a group at once. NCCL would connect it at its first operation, in the backward
  /// pass, which may wait for the device, where a stage's message may wait for a peer that is to connect first.
  void connect(const Group& group) const;
  World& world_;
  Axes axes_;
  std::map<std::vector<std::string>, Group> groups_;
};

}  // namespace trireme::comm
