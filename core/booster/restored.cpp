#include "core/booster/restored.h"

#include <algorithm>

#include "core/checkpoint/weights/weights.h"

namespace trireme {

std::set<std::string> remote_parameters(ModelAndOptimizer& run) {
  std::set<std::string> names;
  for (const auto& parameter : nn::remote_declarations(run.model->module())) {
    names.insert(parameter.name);  // which the names of its optimizer state begin with
    for (auto& name : parameter.placement.stored_names()) names.insert(std::move(name));
  }
  return names;
}

/// Frozen weights may have the working dtype where trained ones have a master: their dtype depends on the layout.
static std::set<std::string> frozen_parameters(ModelAndOptimizer& run) {
  std::set<std::string> names;
  for (const auto& parameter : nn::declarations(run.model->module()))
    if (!parameter.value.requires_grad()) names.insert(parameter.name);
  return names;
}

Restored::Restored(ModelAndOptimizer& run, const checkpoint::Checkpoint& stored) : remote_(remote_parameters(run)) {
  const auto frozen = frozen_parameters(run);
  groups_.push_back({&stored.weights(), "parameters", state_of(run, stored.weights()), frozen});
  groups_.push_back({&stored.optimizer(), "optimizer's tensors", run.optimizer->state(), {}});
  if (run.average && stored.average() != nullptr)
    groups_.push_back({stored.average(), "averaged weights", run.average->state(), frozen});
}

/// The weights, and the buffers unless the checkpoint was written before buffers were saved.
std::vector<shard::Slice> Restored::state_of(ModelAndOptimizer& run, const checkpoint::WeightsFile& weights) {
  auto buffers = nn::buffers(run.model->module());
  const auto remote_buffers = nn::remote_buffers(run.model->module());
  const auto stored = weights.names();
  const auto is_stored = [&](const shard::Slice& buffer) {
    return std::binary_search(stored.begin(), stored.end(), buffer.placement.name);
  };
  const bool stores_any = std::any_of(buffers.begin(), buffers.end(), is_stored) ||
                          std::any_of(remote_buffers.begin(), remote_buffers.end(), is_stored);
  lacks_buffers_ = !stores_any && !(buffers.empty() && remote_buffers.empty());
  auto state = run.model->weights();
  if (stores_any) std::move(buffers.begin(), buffers.end(), std::back_inserter(state));
  for (const auto& buffer : remote_buffers) remote_.insert(buffer.placement.name);
  return state;
}

void Restored::verify() const {
  for (const auto& group : groups_) {
    const auto stored = group.file->names();
    for (const auto& [placement, value] : group.slices)
      if (std::binary_search(stored.begin(), stored.end(), placement.stored_names().front()))
        group.file->verify(placement.name, placement);
  }
}

}  // namespace trireme
