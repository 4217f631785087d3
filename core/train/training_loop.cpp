#include "core/train/training_loop.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/launch/parent.h"
#include "core/resume/export.h"
#include "core/resume/resume.h"
#include "core/setup/deterministic.h"
#include "core/train/evaluate.h"
#include "core/train/finish.h"
#include "core/train/out_of_memory.h"

namespace trireme::train {

static double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void TrainingLoop::boost() {
  if (!run_.boosted.model) run_.boosted = run_.booster.boost(training_inputs(run_.setup));
}

RunResult TrainingLoop::train() {
  TRIREME_REQUIRE(!result_,
                  "train() was called twice; destroy this Trainer and make another one, which may resume from its "
                  "folder");
  try {
    with_memory_remedy([this] { with_deterministic_remedy(options(), [this] { train_until_the_end(); }); },
                       [this] {
                         if (may_retry(run_)) parent::may_fit_with((run_.setup.batch.micro + 1) / 2);
                         return memory_remedy(run_);
                       });
  } catch (const StoppedBySignal&) {
    throw;  // no error
  } catch (...) {
    // The error is said before the disk is waited for, which may be what hangs.
    saves_.cancel();
    tell_callbacks(std::current_exception());
    saves_.abandon();
    throw;
  }
  return *result_;
}

void TrainingLoop::train_until_the_end() {
  start();
  auto& state = run_.state;
  while (!run_.is_over() || (state.evaluation_pending && !run_.is_stopped_by_signal())) {
    try {
      train_epoch();
    } catch (const ReturnToCheckpoint& back) {
      readback_.drain();  // steps after the bad one, which do not count
      watch_.return_to(back);
      continue;
    }
    if (is_epoch_done() && !state.evaluation_pending) {
      ++state.at.epoch;
      state.at.step_in_epoch = 0;
    }
    if (run_.setup.plan.saves_epochs || run_.is_over() || is_save_due()) saves_.save();
  }
  saves_.settle();
  saves_.end();
  if (run_.is_stopped_by_signal()) throw_stopped();
  result_ = end();
  saves_.warn_if_unrecorded("");
  if (run_.setup.plan.loads_best_at_end && !result_->best_is_last() && !run_.best->load(run_.boosted))
    run_.say("the model keeps the last weights, because there are no best ones that every rank can read");
}

void TrainingLoop::start() {
  boost();
  saves_.start();
  run_.resumed_from = resume(run_.setup, *run_.folder, run_.boosted, run_.state, *run_.best);
  run_.resumed_at = run_.state.at.global_step;
  saves_.go_on_from(run_.resumed_from);
  run_.peak_flops = peak_of_all(options().run.peak_tflops, options().train.precision, run_.world);
  saves_.reserve();
  run_.call(&RunCallback::on_start);
  if (watch_.numbers().may_need_checkpoint() && !saves_.has_own()) saves_.save();
  begin_ = Clock::now();
}

void TrainingLoop::train_epoch() {
  auto& state = run_.state;
  const auto epoch_begin = Clock::now();
  const auto goes_on = [this] { return !run_.is_over() && !is_epoch_done(); };
  if (state.at.step_in_epoch == 0) state.epoch_loss = {};
  inputs_ = {};
  run_.boosted.loader->start_epoch(state.at.epoch, state.at.step_in_epoch);
  if (std::exchange(state.evaluation_pending, false) && !is_epoch_done()) validate(std::nullopt);
  clock_.start();
  while (goes_on()) {
    const auto batch = next_batch();
    if (!batch) break;
    if (watch_.numbers().leaves_out(state.at.global_step + 1))
      leave_out_step();
    else
      train_step(*batch);
    if (goes_on() && (is_evaluation_due() || is_save_due())) {
      finish_steps();
      if (is_evaluation_due()) validate(std::nullopt);
      if (!run_.is_over() && is_save_due()) saves_.save();
      clock_.start();
    }
  }
  finish_steps();
  if (!run_.is_stopped_by_signal() && is_epoch_evaluation_due()) {
    // An evaluation within an epoch that only the training's end causes: a run that is resumed must not know of it.
    if (!is_epoch_done() && !is_evaluation_due()) saves_.save();
    validate(epoch_begin);
  }
  const bool goes_on_later = run_.is_stopped_by_signal();
  state.evaluation_pending = goes_on_later && is_epoch_evaluation_due() && (is_epoch_done() || is_evaluation_due());
  if (!goes_on_later || (is_epoch_done() && !state.evaluation_pending))
    run_.call(&RunCallback::on_epoch_end, epoch_end(epoch_begin));
}

std::optional<data::StepBatch> TrainingLoop::next_batch() {
  comm::flight::set_phase(comm::flight::Phase::data);
  return run_.boosted.loader->next();
}

void TrainingLoop::train_step(const data::StepBatch& batch) {
  run_.call(&RunCallback::on_step_begin);
  saves_.vote();
  const auto step = run_.boosted.train_step(batch);
  auto& at = run_.state.at;
  ++at.global_step;
  ++at.step_in_epoch;
  at.samples += batch.global_samples;
  local_samples_ += batch.local_samples;
  inputs_.elements += batch.elements;
  inputs_.padding += batch.padding;
  const auto flops = run_.world.rank() == 0 ? flop_rate_.of_step(batch) : std::nullopt;
  const auto time = clock_.end_step(batch.wait_seconds);
  read_back(step, batch,
            {.at = at,
             .loss = 0,
             .lr = step.lr,
             .weight = 0,
             .grad_norm = 0,
             .skipped = false,
             .samples = batch.global_samples,
             .seconds = time.seconds,
             .data_wait = time.data,
             .flops = flops});
  run_.call(&RunCallback::on_step_end, StepEnd{step, batch, time.seconds, time.data, time.communication});
  saves_.after_step();
  watch_.act(/*all_are_read=*/false);
  watch_.compare_replicas();
}

/// Counts a step whose batch is left out; nothing is trained.
void TrainingLoop::leave_out_step() {
  ++run_.boosted.step;
  ++run_.state.at.global_step;
  ++run_.state.at.step_in_epoch;
  clock_.start();
  run_.folder->metric({{"kind", "event"}, {"event", "left_out"}, {"step", run_.state.at.global_step}});
}

/// Completes the step's log when its numbers are on the host, and passes it on.
void TrainingLoop::read_back(const TrainStep& step, const data::StepBatch& batch, StepLog log) {
  const auto& divisor = batch.micro.front().global_weight;
  const bool on_host = divisor.is_cpu();
  watch_.numbers().launched();
  const double known = on_host ? divisor.item<double>() : 0;
  readback_.add({step.loss, step.result.grad_norm, step.result.found_inf, on_host ? at::Tensor() : divisor, step.votes},
                [this, log, on_host, known](const std::vector<double>& values) mutable {
                  auto value = values.begin();
                  log.loss = *value++;
                  log.grad_norm = *value++;
                  log.skipped = *value++ != 0;
                  const double weight = *value++;
                  log.weight = on_host ? known : weight;
                  std::copy_n(value, kVotes, log.votes.ranks.begin());
                  run_.state.skipped += log.skipped ? 1 : 0;
                  saves_.read(log.votes);
                  run_.state.epoch_loss.add(log.loss, log.weight);
                  if (log.flops) flop_rate_.add(*log.flops, log.seconds);
                  const bool stopped = !run_.stopped_by.empty();
                  run_.call(&RunCallback::on_log, log);
                  watch_.see(log);
                  TRIREME_REQUIRE(stopped || run_.stopped_by.empty() || run_.world.device().is_cpu(),
                                  "a callback has set stopped_by in on_log(), to which GPU ranks come at different "
                                  "steps; set it in on_step_end() or on_evaluate()");
                });
}

EpochEnd TrainingLoop::epoch_end(Clock::time_point begin) const {
  EpochEnd end{epoch_number(), run_.state.epoch_loss.value(), since(begin)};
  if (inputs_.elements > 0)
    end.padded_share = static_cast<double>(inputs_.padding) / static_cast<double>(inputs_.elements);
  return end;
}

/// Waits for the steps that are launched. The wait belongs to them; what follows belongs to no step.
void TrainingLoop::finish_steps() {
  readback_.drain();
  flop_rate_.add_wait(clock_.elapsed());
  watch_.act(/*all_are_read=*/true);
}

data::Loader& TrainingLoop::validation_loader() {
  const auto& setup = run_.setup;
  TRIREME_REQUIRE(setup.data.validation != nullptr, "the Trainer has no evaluation data; pass TrainerInputs::eval");
  if (!validation_) validation_ = run_.boosted.evaluation_loader(setup.data.validation, setup.batch.eval);
  return *validation_;
}

/// Evaluates on the validation split. `epoch_begin`: set at the end of an epoch. @pre finish_steps()
void TrainingLoop::validate(const std::optional<Clock::time_point>& epoch_begin) {
  const comm::flight::PhaseScope phase(comm::flight::Phase::evaluate);
  const auto averaged = run_.boosted.use_average();
  EvalResult eval;
  try {
    stops_.emplace(run_.world);
    eval = train::evaluate(run_.boosted, validation_loader(), nullptr, nullptr, [this] { end_if_stopped(); });
  } catch (const EvaluationStopped&) {
    run_.stopped_by = StopOnRequest::kBySignal;
    return;
  }
  if (!std::isfinite(eval.loss)) saves_.settle();  // so that the checkpoint in flight need not be lost
  BadNumbers::check_validation(epoch_number(), eval.loss);
  record_evaluation(eval, epoch_begin ? std::optional(epoch_end(*epoch_begin)) : std::nullopt);
}

/// Decides whether an evaluation is the best so far, counts for early stopping, reports it, and keeps the best weights.
void TrainingLoop::record_evaluation(const EvalResult& eval, const std::optional<EpochEnd>& epoch) {
  auto& state = run_.state;
  state.last = {epoch_number(), state.at.global_step, {{kLoss, eval.loss}}};
  for (const auto& [metric, value] : eval.metrics) state.last.values[metric.name] = value;
  const auto best_before = state.best;
  const auto since_best = state.evaluations_since_best;
  const bool is_best = state.last.better_than(best_before, run_.setup.task.best);
  if (is_best) state.best = state.last;
  state.evaluations_since_best = is_best ? 0 : since_best + 1;
  run_.call(&RunCallback::on_evaluate,
            Evaluation{.split = "validation", .result = eval, .of = state.last, .is_best = is_best, .epoch = epoch});
  if (is_best && run_.setup.plan.keeps_best && !saves_.keep_best()) {  // the earlier weights are kept
    state.best = best_before;
    state.evaluations_since_best = since_best + 1;
  }
}

RunResult TrainingLoop::end() {
  comm::flight::set_phase(comm::flight::Phase::finish);
  const auto& setup = run_.setup;
  const auto& state = run_.state;
  const auto averaged = run_.boosted.use_average();
  // The training ended between two evaluations, or a run with nothing left to train was resumed, perhaps with another
  // metric.
  const bool evaluates = setup.data.validation && (setup.plan.evaluates_epochs || options().train.eval_every);
  if (evaluates && (state.last.step != state.at.global_step || !state.last.values.contains(setup.task.shown.name) ||
                    !state.last.values.contains(setup.task.best.name)))
    validate(std::nullopt);
  if (run_.is_stopped_by_signal()) throw_stopped();
  if (options().run.peak_tflops && !flop_rate_.problem().empty())
    setup.log.warn("run.peak_tflops has no effect, because the FLOPs of this model cannot be counted ({}); remove it",
                   flop_rate_.problem());
  auto result = finish_run();
  run_.call(&RunCallback::on_finish, result);
  return result;
}

/// @throws StoppedBySignal, when a signal ends an evaluation
RunResult TrainingLoop::finish_run() {
  stops_.emplace(run_.world);
  try {
    return finish(run_, {.seconds = [this] { return since(begin_); },
                         .local_samples = local_samples_,
                         .flops_per_s = flop_rate_.mean(),
                         .before_batch = [this] { end_if_stopped(); }});
  } catch (const EvaluationStopped&) {
    throw_stopped();
  }
}

/// Called before each batch of an evaluation. @throws EvaluationStopped on every rank, when one has got a signal
void TrainingLoop::end_if_stopped() {
  if (stops_->any(StopSignals::received() != 0)) throw EvaluationStopped();
}

/// Says where the stopped run was saved, and throws StoppedBySignal. Collective.
void TrainingLoop::throw_stopped() {
  auto number = at::full({}, StopSignals::received(), at::TensorOptions(at::kInt).device(run_.world.device()));
  run_.world.group().all_reduce(number, comm::ReduceOp::max);  // some ranks may have got none
  const StoppedBySignal stopped(number.item<int>(), saves_.newest());
  const auto step = run_.state.at.global_step;
  if (run_.world.rank() == 0)
    run_.folder->metric({{"kind", "event"}, {"event", "stop"}, {"signal", stopped.signal()}, {"step", step}});
  comm::flight::note_stopped();
  run_.say(fmt::format("stopped   after step {}{}", step, saves_.what_is_saved()));
  saves_.warn_if_unrecorded("");
  throw stopped;
}

void TrainingLoop::tell_callbacks(const std::exception_ptr& error) {
  saves_.warn_if_unrecorded(verdict_on(error).message);
  for (const auto& callback : run_.callbacks) {
    try {
      callback->on_exception(error);
    } catch (const std::exception& another) {
      run_.setup.log.warn("a callback's on_exception() failed: {}", another.what());
    }
  }
}

/// Whether the epoch, or the part of it that was trained, has yet to be evaluated.
bool TrainingLoop::is_epoch_evaluation_due() const {
  const auto& state = run_.state;
  return (run_.setup.plan.evaluates_epochs || is_evaluation_due()) && state.last.step != state.at.global_step;
}

/// The epoch in progress or just ended, from 1.
std::int64_t TrainingLoop::epoch_number() const { return std::max<std::int64_t>(run_.state.at.epoch_number(), 1); }

}  // namespace trireme::train
