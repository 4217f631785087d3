#include "core/booster/boosted.h"

#include "core/base/trace.h"
#include "core/booster/buffers.h"
#include "core/comm/flight/recorder.h"

namespace trireme {

at::Tensor BoostedModel::forward_backward(const data::StepBatch& batch, const Criterion& criterion,
                                          BoostedOptimizer& optimizer, std::vector<nn::Tensors>* outputs) {
  at::Tensor sum;
  for (std::size_t i = 0; i < batch.micro.size(); ++i) {
    const auto& micro = batch.micro[i];
    // With most plugins gradients are reduced once, during the backward pass of the last microbatch.
    const bool reduce = i + 1 == batch.micro.size() || reduces_each_microbatch();
    const auto local = reduce ? ScopeGuard({}) : no_sync();
    nn::Tensors made;
    at::Tensor loss;
    {
      const trace::Scope scope("forward", static_cast<std::int64_t>(i));
      const comm::flight::PhaseScope phase(comm::flight::Phase::forward, static_cast<std::int64_t>(i));
      made = forward(micro);
      loss = criterion(made, micro);
    }
    {
      const trace::Scope scope("backward", static_cast<std::int64_t>(i));
      const comm::flight::PhaseScope phase(comm::flight::Phase::backward, static_cast<std::int64_t>(i));
      optimizer.backward(loss, micro.global_weight);
    }
    const auto part = part_of_mean(loss.detach(), micro.global_weight);
    sum = sum.defined() ? sum + part : part;
    if (outputs == nullptr) continue;
    outputs->emplace_back();
    for (const auto& output : made) outputs->back().push_back(output.detach());
  }
  return sum;
}

std::vector<shard::Slice> BoostedModel::state_dict() {
  auto tensors = weights();
  for (auto& buffer : nn::buffers(module())) tensors.push_back(std::move(buffer));
  return tensors;
}

StepResult BoostedOptimizer::step(double lr) {
  if (buffer_sync_) buffer_sync_->start();
  auto result = apply_gradients(lr);
  if (buffer_sync_) buffer_sync_->finish();
  if (const auto after = std::exchange(after_first_step_, nullptr)) after();
  return result;
}

}  // namespace trireme
