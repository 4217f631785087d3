#include "zero/reducing_ranks.h"

#include <algorithm>
#include <set>

namespace trireme::zero {
namespace {

bool has(const std::vector<std::string>& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

}  // namespace

ReductionPlan::ReductionPlan(nn::Model& model, comm::Mesh& mesh, const std::vector<std::string>& partition)
    : summed_(mesh.axes(&comm::AxisKind::sums_gradients)) {
  // All ranks create the same groups in the same order, so the other ranks' parameters count too.
  std::set<Axes> combinations{{}};
  for (const auto& parameter : nn::declarations(model)) combinations.insert(left_out(parameter.placement));
  for (const auto& parameter : nn::remote_declarations(model)) combinations.insert(left_out(parameter.placement));
  std::set<std::string> differing;
  for (const auto& without : combinations) {
    Axes everyone, shards, replicas;
    for (const auto& axis : summed_) {
      if (has(without, axis)) continue;
      everyone.push_back(axis);
      (has(partition, axis) ? shards : replicas).push_back(axis);
    }
    ranks_[without] = std::make_shared<const ReducingRanks>(
        ReducingRanks{mesh.group(shards), mesh.group(replicas), mesh.group(everyone), shards});
    differing.insert(shards.begin(), shards.end());
    differing.insert(without.begin(), without.end());
  }
  for (const auto& axis : mesh.axes())
    if (differing.contains(axis) || has(mesh.axes(&comm::AxisKind::splits_model), axis)) norm_axes_.push_back(axis);
}

ReductionPlan::Axes ReductionPlan::left_out(const shard::Placement& parameter) const {
  Axes axes;
  for (const auto& axis : summed_)
    if (parameter.differs_along(axis)) axes.push_back(axis);
  return axes;
}

const std::shared_ptr<const ReducingRanks>& ReductionPlan::of(const shard::Placement& parameter) const {
  return ranks_.at(left_out(parameter));
}

}  // namespace trireme::zero
