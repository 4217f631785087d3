// The default methods of a boosted model and optimizer, and what is done with a Boosted: its steps, and its loaders.
#include "core/booster/boosted.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/base/trace.h"
#include "core/booster/booster.h"
#include "core/booster/buffers.h"
#include "core/comm/flight/recorder.h"
#include "core/nn/block.h"

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

/// The tensors along dim 0, with zeros after the end of those that are shorter in another dim.
static at::Tensor joined(const std::vector<at::Tensor>& parts) {
  auto sizes = parts.front().sizes().vec();
  std::int64_t rows = 0;
  for (const auto& part : parts) {
    rows += part.size(0);
    for (std::size_t d = 1; d < sizes.size(); ++d)
      sizes[d] = std::max(sizes[d], part.size(static_cast<std::int64_t>(d)));
  }
  sizes[0] = rows;
  auto whole = at::zeros(sizes, parts.front().options());
  rows = 0;
  for (const auto& part : parts) {
    auto to = whole.narrow(0, rows, part.size(0));
    for (std::int64_t d = 1; d < part.dim(); ++d) to = to.narrow(d, 0, part.size(d));
    to.copy_(part);
    rows += part.size(0);
  }
  return whole;
}

Epochs Boosted::epochs(std::optional<std::int64_t> count) {
  const auto& train = booster->options().train;
  const auto last = count.value_or(train.epochs) * loader->steps_per_epoch();
  return {*loader, step, std::min(last, train.max_steps.value_or(last))};
}

at::Tensor Boosted::forward_backward(const data::StepBatch& batch, std::vector<nn::Tensors>* outputs) {
  model->train(true);
  if (outputs != nullptr || !model->module().releases_outputs())
    return model->forward_backward(batch, criterion, *optimizer, outputs);
  auto released = batch;
  for (auto& micro : released.micro) micro.loss_of_head = criterion.of_head();
  return model->forward_backward(released, criterion.overwriting(), *optimizer, nullptr);
}

Executed Boosted::execute_pipeline(const data::StepBatch& batch, ExecuteOptions what) {
  std::vector<nn::Tensors> micro;
  auto loss = forward_backward(batch, what.return_outputs ? &micro : nullptr);
  Executed executed;
  if (what.return_loss) {
    booster->loss_group().all_reduce(loss);
    executed.loss = std::move(loss);
  }
  for (auto& outputs : micro)
    if (sharded_logits.gather && !outputs.empty()) outputs.front() = sharded_logits.gather(outputs.front());
  for (std::size_t k = 0; !micro.empty() && k < micro.front().size(); ++k) {
    std::vector<at::Tensor> parts;
    for (const auto& outputs : micro) parts.push_back(outputs[k]);
    executed.outputs.push_back(joined(parts));
  }
  return executed;
}

std::vector<shard::Slice> Boosted::unscaled_gradients() {
  auto gradients = model->gradients();
  if (const auto& scaler = optimizer->scaler(); scaler.enabled())
    for (auto& gradient : gradients) gradient.value = gradient.value.to(at::kFloat) * scaler.inverse();
  return gradients;
}

void Boosted::backward(const at::Tensor& loss_sum, const data::Batch& micro) {
  TRIREME_REQUIRE(!model->is_pipeline(),
                  "Boosted::backward(): ranks run different blocks of this model, so one microbatch alone has no "
                  "backward pass; call Boosted::train_step() or execute_pipeline()");
  optimizer->backward(loss_sum, micro.global_weight);
}

TrainStep Boosted::train_step(const data::StepBatch& batch) {
  comm::flight::set_step(step + 1);
  std::optional<BufferUndo> buffers;
  if (booster->options().train.on_nonfinite == "skip") buffers.emplace(model->module());
  const auto sum = forward_backward(batch);
  // The loss is reduced while the optimizer steps.
  auto sums = booster->reduction_->start(sum);
  TrainStep done;
  done.lr = lr_schedule->lr(step);
  {
    const trace::Scope scope("optimizer");
    const comm::flight::PhaseScope phase(comm::flight::Phase::update);
    done.result = optimizer->step(done.lr);
  }
  if (buffers) buffers->finish(done.result.found_inf);
  optimizer->zero_grad();
  ++step;
  comm::flight::set_phase(comm::flight::Phase::reduce);
  if (average) average->update(step);
  sums.sent.wait();
  done.loss = std::move(sums.loss);
  done.votes = std::move(sums.votes);
  return done;
}

std::unique_ptr<data::Loader> Boosted::evaluation_loader(std::shared_ptr<data::Dataset> data,
                                                         std::int64_t batch) const {
  auto options = loader_options();
  options.micro_batch = batch;
  options.global_batch = batch * options.dp_size;
  options.evaluation = true;
  return std::make_unique<data::Loader>(std::move(data), options);
}

}  // namespace trireme
