// Mesh: the axes of the layout over the ranks of the world, validated once and passed down.
// Axis is a mesh word (dp, pp, tp, sp); dim is a tensor word.
//
// Rank order is row-major over the axes as given, the last varying fastest:
//   {{"dp", 2}, {"pp", 1}, {"tp", 2}} -> rank = (dp * 1 + pp) * 2 + tp
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/world.h"

namespace trireme::comm {

class Mesh {
 public:
  /// Collective over the world. @throws ConfigError when the product of the sizes is not the world's size; prints the
  /// formula and the remedy.
  Mesh(World& world, std::vector<std::pair<std::string, int>> axes);

  /// The formula's check alone, before any process group. @throws ConfigError.
  static void validate(const std::vector<std::pair<std::string, int>>& axes, int world_size);

  [[nodiscard]] std::vector<std::string> axes() const;  ///< their names, in the order of the ranks
  [[nodiscard]] bool has(const std::string& axis) const;
  [[nodiscard]] int size(const std::string& axis) const;        ///< 1 for an axis that the mesh does not have
  [[nodiscard]] int coordinate(const std::string& axis) const;  ///< of this rank; 0 for an axis it does not have
  /// The ranks that differ from this one along `axis` alone.
  [[nodiscard]] const Group& group(const std::string& axis);
  /// ... along any of several axes ("dp", "sp"); made at the first call (collective over the world), then cached.
  /// Its ledger name is the axes joined: "dp_sp".
  [[nodiscard]] const Group& group(const std::vector<std::string>& axes);
  [[nodiscard]] const Group& group(std::initializer_list<const char*> axes) {
    return group(std::vector<std::string>(axes.begin(), axes.end()));  // {"dp", "sp"} would else be one string's range
  }
  /// Another group of the ranks of group(axis): its calls wait for none of that one's. Collective over the world.
  [[nodiscard]] Group another(const std::string& axis);
  [[nodiscard]] World& world() const { return world_; }
  [[nodiscard]] std::string formula() const;  ///< "4 = dp 2 x tp 2"

 private:
  /// The group of the ranks that agree on every axis but `names`. Collective over the world.
  [[nodiscard]] Group make(const std::vector<std::string>& names) const;
  World& world_;
  std::vector<std::pair<std::string, int>> axes_;
  std::map<std::vector<std::string>, Group> groups_;
};

}  // namespace trireme::comm
