// Axes: the ways in which a layout divides the work over ranks, in one table. The mesh (mesh.h), [parallel] of the TOML
// file, the plugins' options, `trireme verify --layouts` and docs/config.md read it, so an axis is defined by its row.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme::comm {

/// A kind of axis. A program's own plugin can make a further one.
struct AxisKind {
  std::string name;      ///< in meshes, CommStats and messages: "tp"
  std::string title;     ///< "tensor-parallel ranks"
  std::string key{};     ///< its key in [parallel] and in --layouts: "tp"; "" if it has none
  std::string option{};  ///< the plugins' key of its size: "tp_size"; "" if the size follows from the other axes
  /// Each rank reads samples of its own.
  bool splits_samples = false;
  /// Each rank computes a part of every gradient, except of parameters that are sharded along the axis; the parts are
  /// summed over the axis.
  bool sums_gradients = false;
  /// Of an axis that sums gradients: ZeRO partitions gradients and optimizer state over it.
  bool partitions_state = false;
  /// Each rank computes a part of the loss, and of an evaluation's counts; the parts are summed over the axis.
  bool sums_losses = false;
  /// Each rank holds other parameters, or other parts of them.
  bool splits_model = false;
  std::string collectives{};  ///< what its ranks send to each other, for documentation
};

/// The kinds that the built-in plugins use, in the order of a mesh: the ranks of the last one are neighbours.
const std::vector<AxisKind>& axis_kinds();

/// An axis of a mesh.
struct Axis {
  AxisKind kind;
  int size;  ///< number of ranks along it

  /// `name`: of a row of axis_kinds(). @throws ConfigError for another one; a further axis needs an AxisKind
  Axis(const std::string& name, int ranks);
  Axis(AxisKind of, int ranks) : kind(std::move(of)), size(ranks) {}
};
using Axes = std::vector<Axis>;

}  // namespace trireme::comm
