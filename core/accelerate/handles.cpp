#include "core/accelerate/handles.h"

#include <ATen/ops/isfinite.h>

#include <utility>

#include "core/accelerate/accelerate_state.h"
#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme {
namespace {

at::Tensor only_output(nn::Tensors outputs) {
  TRIREME_REQUIRE(outputs.size() == 1, "the model has {} outputs; call forward(), which returns all of them",
                  outputs.size());
  return std::move(outputs.front());
}

}  // namespace

nn::Tensors PreparedModel::forward(const data::Batch& batch) { return state_->prepared().model->forward(batch); }

at::Tensor PreparedModel::operator()(const data::Batch& batch) { return only_output(forward(batch)); }

at::Tensor PreparedModel::operator()(const at::Tensor& input) {
  const auto names = module().input_names();
  TRIREME_REQUIRE(names.size() <= 1, "the model has {} inputs; pass a batch", names.size());
  const auto* active = state_->active();
  data::Batch batch;
  if (active != nullptr && active->batch.size() == input.size(0)) {
    batch = active->batch;  // sample ids and step, on which dropout masks depend
    batch.inputs = {};
  }
  batch.inputs.set(names.empty() ? "input" : names.front(), input);
  return (*this)(batch);
}

void PreparedModel::train(bool on) { state_->prepared().model->train(on); }

nn::Model& PreparedModel::module() const { return state_->prepared().model->module(); }

void PreparedOptimizer::step() {
  auto& run = state_->prepared();
  auto* active = state_->active();
  TRIREME_REQUIRE(active == nullptr || active->asked || active->steps_of_accumulation == 1,
                  "optimizer.step() for a batch without Accelerator::accumulate(), but gradient_accumulation_steps is "
                  "{}; call accumulate(model) first for each batch, or set gradient_accumulation_steps = 1",
                  active->steps_of_accumulation);
  if (!state_->syncs()) return;
  const auto usual = run.optimizer->max_norm();
  if (state_->clip) run.optimizer->set_max_norm(*std::exchange(state_->clip, std::nullopt));
  state_->last_step = run.optimizer->step(state_->lr());
  run.optimizer->set_max_norm(usual);
  ++run.step;
  state_->accumulating = nullptr;
  if (active != nullptr) active->stepped = active->at;
}

void PreparedOptimizer::zero_grad() {
  auto& run = state_->prepared();
  // At the start of a loop's body, too: the gradients of the group's earlier batches must stay.
  if (state_->accumulates()) return;
  state_->accumulating = nullptr;
  run.optimizer->zero_grad();
}

bool PreparedOptimizer::step_was_skipped() const {
  const auto& [norm, found_inf] = state_->last_step;
  if (found_inf.defined()) return found_inf.item<float>() != 0;
  return norm.defined() && !at::isfinite(norm).item<bool>();
}

at::Tensor PreparedOptimizer::grad_norm() const { return state_->last_step.grad_norm; }
double PreparedOptimizer::lr() const { return state_->lr(); }
std::int64_t PreparedOptimizer::steps() const { return state_->run.step; }

void PreparedScheduler::step() {
  TRIREME_REQUIRE(state_->schedule != nullptr, "this scheduler was prepared before Accelerator::free_memory()");
  if (state_->syncs()) ++state_->schedule_step;
}

double PreparedScheduler::lr() const { return state_->lr(); }

PreparedLoader::Iterator::reference PreparedLoader::Iterator::operator*() const { return loop_->loader->batch; }

PreparedLoader::Iterator& PreparedLoader::Iterator::operator++() {
  if (!loop_->advance()) loop_ = nullptr;
  return *this;
}

PreparedLoader::Iterator PreparedLoader::begin() { return ++Iterator(std::make_shared<LoaderLoop>(loader_)); }

std::int64_t PreparedLoader::size() const { return loader_->prepared().steps_per_epoch(); }
std::int64_t PreparedLoader::samples() const { return loader_->prepared().size(); }
std::int64_t PreparedLoader::local_samples() const { return loader_->local_samples; }
std::int64_t PreparedLoader::total_batch_size() const { return loader_->prepared().options().global_batch; }
std::int64_t PreparedLoader::epoch() const { return loader_->at.epoch; }

void PreparedLoader::set_epoch(std::int64_t epoch) {
  TRIREME_REQUIRE(epoch >= 0, "PreparedLoader::set_epoch({}): epochs count from 0", epoch);
  loader_->set_position({.epoch = epoch, .batch = 0});
}

}  // namespace trireme
