// ReducingRanks: the ranks that reduce and partition a parameter's gradient. They belong to the parameter, and so to
// its bucket, not to the model: a parameter that is sharded along an axis, as an expert is along an axis of experts, is
// reduced over the other axes only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/group.h"
#include "core/comm/mesh.h"
#include "core/nn/parameters.h"

namespace trireme::zero {

struct ReducingRanks {
  comm::Group shards;             ///< partition each bucket; a group of one rank when nothing is partitioned
  comm::Group replicas;           ///< hold the same part; a group of one rank when there are no replicas
  comm::Group everyone;           ///< shards and replicas together
  std::vector<std::string> axes;  ///< the mesh axes that `shards` spans
};

/// The reducing ranks of all parameters of a model.
class ReductionPlan {
 public:
  /// A gradient is summed over the axes of the mesh that sum gradients (comm::AxisKind::sums_gradients) and along which
  /// its parameter is not sharded; of these, buckets are partitioned over those in `partition`. Collective over the
  /// world, whose ranks may hold other parts of the model (nn::remote_declarations).
  ReductionPlan(nn::Model& model, comm::Mesh& mesh, const std::vector<std::string>& partition);

  /// Never null; the same pointer for parameters that may share a bucket.
  [[nodiscard]] const std::shared_ptr<const ReducingRanks>& of(const shard::Placement& parameter) const;
  /// The reducing ranks of a parameter that is sharded along none of the axes.
  [[nodiscard]] const ReducingRanks& whole() const { return *ranks_.at({}); }
  /// The mesh axes along which ranks may hold different slices of updated parameters, for shard::global_norm().
  [[nodiscard]] const std::vector<std::string>& norm_axes() const { return norm_axes_; }

 private:
  using Axes = std::vector<std::string>;
  /// The axes that sum gradients and along which the parameter is sharded.
  [[nodiscard]] Axes left_out(const shard::Placement& parameter) const;
  Axes summed_;                                                 ///< the axes that sum gradients
  std::map<Axes, std::shared_ptr<const ReducingRanks>> ranks_;  ///< by the axes that are left out
  Axes norm_axes_;
};

}  // namespace trireme::zero
