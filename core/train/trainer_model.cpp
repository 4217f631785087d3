// The parts of a Trainer around its loop: the boosted model, and what a program does with it besides training.
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <typeinfo>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/booster/task_around.h"
#include "core/checkpoint/checkpoint_folders.h"
#include "core/checkpoint/model_folder.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/devices.h"
#include "core/comm/flight/stopping.h"
#include "core/nn/parameters.h"
#include "core/train/deterministic.h"
#include "core/train/evaluate.h"
#include "core/train/lora.h"
#include "core/train/trainer.h"

namespace trireme::train {

/// The task of a run, with the trainer's loss.
class Trainer::OverriddenLoss final : public TaskAround {
 public:
  OverriddenLoss(std::shared_ptr<const Task> task, const Trainer& trainer)
      : TaskAround(std::move(task)), trainer_(trainer) {}
  [[nodiscard]] at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch,
                                const LossOptions& options) const override {
    return trainer_.compute_loss(outputs, batch, options);
  }
  /// A loss of a program's own may read the logits in any way.
  [[nodiscard]] bool takes_sharded_logits() const override { return false; }

 private:
  const Trainer& trainer_;
};

at::Tensor Trainer::compute_loss(const nn::Tensors& outputs, const data::Batch& batch,
                                 const Task::LossOptions& options) const {
  return p_.task->loss(outputs, batch, options);
}

void Trainer::boost() {
  if (run_.model) return;
  auto inputs = training_inputs(p_);
  if (typeid(*this) != typeid(Trainer)) inputs.task = std::make_shared<OverriddenLoss>(p_.task, *this);
  run_ = booster_.boost(std::move(inputs));
}

Boosted& Trainer::boosted() {
  boost();
  return run_;
}

data::Loader& Trainer::validation_loader() {
  TRIREME_REQUIRE(p_.data.validation != nullptr, "the Trainer has no evaluation data; pass TrainerInputs::eval");
  if (!validation_) validation_ = run_.evaluation_loader(p_.data.validation, p_.eval_batch);
  return *validation_;
}

EvalResult Trainer::evaluate(const std::shared_ptr<data::Dataset>& data) {
  boost();
  const auto averaged = run_.use_average();
  const auto own = data ? run_.evaluation_loader(p_.plan.collated(data), p_.eval_batch) : nullptr;
  auto& loader = own ? *own : validation_loader();
  EvalResult result;
  with_deterministic_remedy(p_.config, [&] { result = train::evaluate(run_, loader); });
  return result;
}

Predictions Trainer::predict(const std::shared_ptr<data::Dataset>& data) {
  boost();
  const auto averaged = run_.use_average();
  const auto loader = run_.evaluation_loader(p_.plan.collated(data), p_.eval_batch);
  Predictions out;
  with_deterministic_remedy(p_.config, [&] { out = train::predict(run_, *loader); });
  return out;
}

void Trainer::save_model(const std::string& folder) {
  boost();
  const auto averaged = run_.use_average();
  checkpoint::on_first_rank(world_, [&] { checkpoint::check_own_model(folder); });
  export_weights(folder, run_, exported_texts(p_), p_.config.lora);
}

bool Trainer::is_over() const {
  return state_.at.epoch >= p_.config.train.epochs || state_.at.global_step >= p_.total_steps ||
         !context_.stopped_by.empty();
}

bool Trainer::is_stopped_by_signal() const { return context_.stopped_by == StopOnRequest::kBySignal; }

/// Whether the epoch, or the part of it that was trained, has yet to be evaluated.
bool Trainer::is_epoch_evaluation_due() const {
  return (p_.plan.evaluates_epochs || is_evaluation_due()) && state_.last.step != state_.at.global_step;
}

/// The end of the line that says that a signal has stopped the run.
std::string Trainer::what_is_saved() const {
  if (p_.config.run.keep_checkpoints == 0) return "; nothing is saved (run.keep_checkpoints = 0)";
  if (saved_.empty()) return ", which could not be saved; there is no earlier checkpoint";
  if (const auto step = checkpoint::step_of_folder(saved_); step != state_.at.global_step)
    return fmt::format(", which could not be saved; the newest checkpoint is that of step {}, {}", step, saved_);
  return fmt::format(", saved in {}", saved_);
}

/// Says where the stopped run was saved, and throws StoppedBySignal. Collective.
void Trainer::throw_stopped() {
  auto number = at::full({}, StopSignals::received(), at::TensorOptions(at::kInt).device(world_.device()));
  world_.group().all_reduce(number, comm::ReduceOp::max);  // some ranks may have got none
  const StoppedBySignal stopped(number.item<int>(), saved_);
  const auto step = state_.at.global_step;
  if (world_.rank() == 0)
    folder_->metric({{"kind", "event"}, {"event", "stop"}, {"signal", stopped.signal()}, {"step", step}});
  comm::flight::note_stopped();
  context_.say(fmt::format("stopped   after step {}{}", step, what_is_saved()));
  warn_if_unrecorded("");
  throw stopped;
}

/// Called before each batch of an evaluation. @throws EvaluationStopped on every rank, when one has got a signal
void Trainer::end_if_stopped() {
  if (stops_->any(StopSignals::received() != 0)) throw EvaluationStopped();
}

/// The epoch in progress or just ended, from 1.
std::int64_t Trainer::epoch_number() const {
  const auto& at = state_.at;
  return at.step_in_epoch == 0 && at.epoch > 0 ? at.epoch : at.epoch + 1;
}

/// The peak of all ranks' devices in FLOP/s, if it is known.
std::optional<double> Trainer::peak_of_all() const {
  auto peak = p_.config.run.peak_tflops;
  if (!peak && world_.rank() == 0 && world_.device().is_cuda()) {
    peak = peak_tflops(comm::cuda_device_name(world_.device().index()), p_.config.train.precision);
    if (peak) *peak /= world_.ranks_per_device();
  }
  return peak ? std::optional(*peak * 1e12 * world_.size()) : std::nullopt;
}

/// "; held at most 12.0 MiB: weights 2.0 MiB, ...". What is not weights, gradients or state is taken for activations.
std::string Trainer::held_memory() const {
  const auto optimizer = run_.optimizer->report();
  std::int64_t buffers = 0;
  for (const auto& buffer : nn::buffers(run_.model->module()))
    buffers += static_cast<std::int64_t>(buffer.value.nbytes());
  const auto peak = memory::peak_of(world_.device());
  std::int64_t rest = peak;
  std::vector<std::string> parts;
  for (const auto& [what, bytes] :
       {std::pair<const char*, std::int64_t>{"weights", run_.model->report().parameter_bytes},
        {"gradients", optimizer.gradient_bytes},
        {"optimizer state", optimizer.state_bytes - optimizer.host_state_bytes},
        {"average of the weights", run_.average ? run_.average->bytes() : 0},
        {"buffers", buffers}}) {
    rest -= bytes;
    if (bytes > 0) parts.push_back(fmt::format("{} {}", what, text::bytes(static_cast<double>(bytes))));
  }
  if (rest > 0)
    parts.push_back(fmt::format("activations{} {}", optimizer.gradient_bytes == 0 ? ", gradients" : " and temporaries",
                                text::bytes(static_cast<double>(rest))));
  return peak == 0 ? ""
                   : fmt::format("; held at most {}: {}", text::bytes(static_cast<double>(peak)), text::join(parts));
}

/// Whether a training whose memory ran out is to be started again with smaller microbatches. Not if that would change
/// it: a batch norm computes the statistics of a microbatch.
bool Trainer::may_retry() const {
  if (!run_.model || p_.config.train.on_oom != kOomRetry || p_.micro_batch <= 1) return false;
  const auto buffers = nn::buffers(run_.model->module());
  return std::none_of(buffers.begin(), buffers.end(),
                      [](const auto& buffer) { return buffer.placement.name.ends_with("running_mean"); });
}

/// What was held and the remedy when memory runs out in training.
std::string Trainer::memory_remedy() const {
  if (!run_.model)  // while weights and optimizer state are made
    return ": choose a smaller model, or partition it over more ranks (parallel.tp, parallel.pp, parallel.zero = 3)";
  std::vector<std::string> ways;
  if (p_.micro_batch > 1) ways.push_back(fmt::format("use a train.micro_batch below {}", p_.micro_batch));
  if (!p_.config.train.recompute)
    ways.emplace_back("set train.recompute = true");
  else if (!p_.config.train.offload_activations && world_.device().is_cuda())
    ways.emplace_back("set train.offload_activations = true");
  for (auto& way : run_.model->report().memory_advice) ways.push_back(std::move(way));
  return held_memory() + (ways.empty() ? ": use more ranks" : fmt::format(": {}, or use more ranks", text::join(ways)));
}

void Trainer::report_error(const std::exception_ptr& error) {
  warn_if_unrecorded(verdict_on(error).message);
  for (const auto& callback : callbacks_) {
    try {
      callback->on_exception(error);
    } catch (const std::exception& another) {
      p_.log.warn("a callback's on_exception() failed: {}", another.what());
    }
  }
}

}  // namespace trireme::train
