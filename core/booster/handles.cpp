#include "core/booster/handles.h"

#include "core/booster/buffers.h"

namespace trireme {

std::vector<shard::Slice> BoostedModel::state_dict() {
  auto tensors = weights();
  for (auto& buffer : nn::buffers(module())) tensors.push_back(std::move(buffer));
  return tensors;
}

StepResult BoostedOptimizer::step(double lr) {
  if (buffer_sync_) buffer_sync_->start();
  auto result = apply_gradients(lr);
  if (buffer_sync_) buffer_sync_->finish();
  return result;
}

}  // namespace trireme
