#include "pipeline/executor.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/trace.h"
#include "core/comm/flight/recorder.h"

namespace trireme::pipeline {

Executor::Executor(Plan plan, Links links, Chunks& chunks)
    : plan_(std::move(plan)), links_(std::move(links)), chunks_(chunks) {}

const Executor::Ready& Executor::ready(int microbatches, bool training) {
  const auto key = std::pair(microbatches, training);
  if (const auto found = ready_.find(key); found != ready_.end()) return found->second;
  auto schedule = make_schedule(plan_, links_.size(), microbatches);
  if (!training) schedule = forward_only(schedule);
  auto programs = lower(schedule, links_.posting());
  Ready made{std::move(schedule), std::move(programs[static_cast<std::size_t>(links_.rank())])};
  return ready_.emplace(key, std::move(made)).first->second;
}

void Executor::train(const std::vector<data::Batch>& micro) {
  run(ready(static_cast<int>(micro.size()), true), micro, true);
}

std::vector<Tensors> Executor::evaluate(const std::vector<data::Batch>& micro) {
  outputs_.clear();
  run(ready(static_cast<int>(micro.size()), false), micro, false);
  return std::exchange(outputs_, {});
}

void Executor::run(const Ready& of, const std::vector<data::Batch>& micro, bool training) {
  schedule_ = &of.schedule;
  micro_ = &micro;
  training_ = training;
  agree(micro, training);
  live_ = std::vector<Live>(micro.size() * static_cast<std::size_t>(schedule_->chunks));
  live_now_ = peak_live_ = 0;
  for (const auto& instruction : of.program) {
    if (is_send(instruction.kind))
      send(instruction);
    else if (is_receive(instruction.kind))
      receive(instruction);
    else
      compute(instruction.action);
  }
  links_.finish();
  live_.clear();
}

Executor::Live& Executor::live(int chunk, int microbatch) {
  return live_.at(static_cast<std::size_t>(chunk) * micro_->size() + static_cast<std::size_t>(microbatch));
}

Boundary Executor::boundary(int stage, int microbatch) const {
  const auto m = static_cast<std::size_t>(microbatch);
  return boundaries_[m]->at(stage).of((*micro_)[m].size());
}

void Executor::compute(const Action& action) {
  using comm::flight::Phase;
  const comm::flight::PhaseScope phase(action.op == Op::forward ? Phase::forward : Phase::backward, action.microbatch);
  await(action);
  const auto begin = trace::now();
  if (action.op == Op::forward)
    forward(action);
  else if (action.op == Op::backward_weight)
    weights(action);
  else
    backward(action);
  trace::synchronize();
  if (watcher_) watcher_({action, schedule_->stage_of(links_.rank(), action.chunk), begin, trace::now()});
}

/// Waits until the inputs of the action have been received.
void Executor::await(const Action& action) {
  const int stage = schedule_->stage_of(links_.rank(), action.chunk);
  auto& at = live(action.chunk, action.microbatch);
  if (action.op == Op::forward && stage > 0 && at.inputs.empty()) at.inputs = at.incoming.take();
  if (!makes_input_gradient(action.op) || !at.gradients.empty() || stage + 1 == schedule_->stages()) return;
  auto arrived = at.incoming_gradients.take();
  auto next = arrived.begin();
  for (const auto& spec : boundary(stage + 1, action.microbatch))
    at.gradients.push_back(spec.requires_grad ? std::move(*next++) : at::Tensor());
}

void Executor::forward(const Action& action) {
  const int stage = schedule_->stage_of(links_.rank(), action.chunk);
  const auto& batch = (*micro_)[static_cast<std::size_t>(action.microbatch)];
  auto& at = live(action.chunk, action.microbatch);
  peak_live_ = std::max(peak_live_, ++live_now_);
  at.inputs = inputs_of(action, stage);
  auto outputs = chunks_.forward(action.chunk, training_ ? as_non_leaves(at.inputs) : at.inputs, batch);
  if (!training_) at.inputs.clear();
  if (stage + 1 == schedule_->stages()) {
    if (!training_) return outputs_.push_back(std::move(outputs));
    const auto loss = chunks_.loss(outputs, batch);
    if (!loss.requires_grad()) return;
    at.graph.push_back(torch::autograd::impl::gradient_edge(loss));
    at.gradients.push_back(at::ones_like(loss));
    return;
  }
  check(boundary(stage + 1, action.microbatch), outputs);
  for (auto& output : outputs) {
    at.graph.push_back(training_ && output.requires_grad() ? torch::autograd::impl::gradient_edge(output)
                                                           : torch::autograd::Edge());
    output = output.detach();
  }
  at.outputs = std::move(outputs);
  forward_to_local_stage(action, stage + 1);
}

Tensors Executor::inputs_of(const Action& action, int stage) {
  if (stage == 0) return {};
  auto inputs = std::move(live(action.chunk, action.microbatch).inputs);
  const auto agreed = boundary(stage, action.microbatch);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    // detach() makes a separate leaf, because a local stage's tensor is the output of this rank's other chunk.
    if (training_ && agreed[i].requires_grad) inputs[i] = inputs[i].detach().set_requires_grad(true);
  }
  return inputs;
}

void Executor::backward(const Action& action) {
  const int stage = schedule_->stage_of(links_.rank(), action.chunk);
  const bool last = action.microbatch + 1 == schedule_->microbatches;
  auto& at = live(action.chunk, action.microbatch);
  const auto roots = roots_of(at);
  Tensors wanted;
  if (stage > 0)
    for (const auto& input : at.inputs)
      if (input.requires_grad()) wanted.push_back(input);
  Tensors found;
  if (action.op == Op::backward) {
    chunks_.before_weights(action.chunk, last);
    nn::backward(roots);
    chunks_.after_weights(action.chunk, last);
    for (auto& input : wanted) found.push_back(std::exchange(input.mutable_grad(), {}));
    --live_now_;
  } else {
    at.split.emplace(roots, wanted);
    found = std::move(at.split->input_gradients());
  }
  for (std::size_t i = 0; i < wanted.size(); ++i)
    at.outgoing.push_back(found[i].defined() ? found[i] : at::zeros(wanted[i].sizes(), wanted[i].options()));
  at.inputs.clear();
  forward_to_local_stage(action, stage - 1);
}

std::vector<nn::SplitBackward::Root> Executor::roots_of(Live& at) {
  std::vector<nn::SplitBackward::Root> roots;
  for (std::size_t i = 0; i < at.graph.size(); ++i)
    roots.push_back({std::move(at.graph[i]), std::move(at.gradients[i])});
  at.graph.clear();
  at.gradients.clear();
  return roots;
}

void Executor::weights(const Action& action) {
  const bool last = action.microbatch + 1 == schedule_->microbatches;
  auto& at = live(action.chunk, action.microbatch);
  chunks_.before_weights(action.chunk, last);
  at.split->accumulate_weights();
  at.split.reset();
  chunks_.after_weights(action.chunk, last);
  --live_now_;
}

void Executor::forward_to_local_stage(const Action& action, int target) {
  if (target < 0) return;
  const auto location = schedule_->location_of(target);
  if (location.rank != links_.rank()) return;
  auto& from = live(action.chunk, action.microbatch);
  auto& to = live(location.chunk, action.microbatch);
  if (action.op == Op::forward) {
    to.inputs = std::move(from.outputs);
    return;
  }
  auto next = from.outgoing.begin();
  for (const auto& spec : boundary(target + 1, action.microbatch))
    to.gradients.push_back(spec.requires_grad ? std::move(*next++) : at::Tensor());
  from.outgoing.clear();
}

void Executor::send(const Instruction& message) {
  auto& at = live(message.action.chunk, message.action.microbatch);
  links_.send(message.peer, std::exchange(message.kind == Kind::send_activation ? at.outputs : at.outgoing, {}));
}

void Executor::receive(const Instruction& message) {
  const auto& action = message.action;
  const int stage = schedule_->stage_of(links_.rank(), action.chunk);
  auto& at = live(action.chunk, action.microbatch);
  if (message.kind == Kind::recv_activation) {
    at.incoming = links_.receive(message.peer, boundary(stage, action.microbatch));
    return;
  }
  Boundary gradients;
  for (auto& spec : boundary(stage + 1, action.microbatch))
    if (spec.requires_grad) gradients.push_back(std::move(spec));
  at.incoming_gradients = links_.receive(message.peer, gradients);
}

}  // namespace trireme::pipeline
