#include "core/train/training_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/comm/host_values.h"
#include "core/launch/parent.h"
#include "core/resume/export.h"
#include "core/resume/resume.h"
#include "core/setup/deterministic.h"
#include "core/train/finish.h"
#include "core/train/out_of_memory.h"
#include "core/train/run_tuning.h"
#include "core/train/stop.h"

namespace trireme::train {

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
  TRIREME_REQUIRE(run_.boosted.step == run_.resumed_at,
                  "the model of a Trainer has made {} steps before train(), which counts them from {}; train it by one "
                  "of the two",
                  run_.boosted.step, run_.resumed_at);
  saves_.go_on_from(run_.resumed_from);
  run_.peak_flops = peak_of_all(options().run.peak_tflops, options().train.precision, run_.world);
  saves_.reserve();
  run_.call(&RunCallback::on_start);
  if (watch_.numbers().may_need_checkpoint() && !saves_.has_own()) saves_.save();
  begin_ = Clock::now();
}

void TrainingLoop::train_epoch() {
  auto& state = run_.state;
  epoch_ = {.begin = Clock::now()};
  const auto goes_on = [this] { return !run_.is_over() && !is_epoch_done(); };
  if (state.at.step_in_epoch == 0) state.epoch_loss = {};
  run_.boosted.loader->start_epoch(state.at.epoch, state.at.step_in_epoch);
  if (std::exchange(state.evaluation_pending, false) && !is_epoch_done()) evaluations_.evaluate();
  clock_.start();
  while (goes_on()) {
    comm::flight::set_phase(comm::flight::Phase::data);
    const auto batch = run_.boosted.loader->next();
    if (!batch) break;
    if (!std::exchange(tuned_, true)) {
      tune_run(run_, *batch);
      if (run_.is_over()) break;
      clock_.start();
    }
    if (watch_.numbers().leaves_out(state.at.global_step + 1))
      leave_out_step();
    else
      train_step(*batch);
    if (goes_on() && (evaluations_.is_due() || is_save_due())) {
      finish_steps();
      if (evaluations_.is_due()) evaluations_.evaluate();
      if (!run_.is_over() && is_save_due()) saves_.save();
      clock_.start();
    }
  }
  finish_steps();
  if (!run_.is_stopped_by_signal() && evaluations_.is_epoch_due()) {
    // An evaluation within an epoch that only the training's end causes: a run that is resumed must not know of it.
    if (!is_epoch_done() && !evaluations_.is_due()) saves_.save();
    evaluations_.evaluate([this] { return epoch_end(); });
  }
  const bool goes_on_later = run_.is_stopped_by_signal();
  state.evaluation_pending = goes_on_later && evaluations_.is_epoch_due() && (is_epoch_done() || evaluations_.is_due());
  if (!goes_on_later || (is_epoch_done() && !state.evaluation_pending))
    run_.call(&RunCallback::on_epoch_end, epoch_end());
}

void TrainingLoop::train_step(const data::StepBatch& batch) {
  run_.call(&RunCallback::on_step_begin);
  saves_.vote();
  const auto step = run_.boosted.train_step(batch);
  auto& at = run_.state.at;
  at.global_step = run_.boosted.step;
  ++at.step_in_epoch;
  at.samples += batch.global_samples;
  local_samples_ += batch.local_samples;
  epoch_.elements += batch.elements;
  epoch_.padding += batch.padding;
  const auto flops = run_.world.rank() == 0 ? flop_rate_.of_step(batch) : std::nullopt;
  const auto time = clock_.end_step(batch.wait_seconds);
  read_back(step, batch,
            {.at = at,
             .lr = step.lr,
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
  run_.state.at.global_step = ++run_.boosted.step;
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

EpochEnd TrainingLoop::epoch_end() const {
  const std::chrono::duration<double> seconds = Clock::now() - epoch_.begin;
  EpochEnd end{run_.epoch_number(), run_.state.epoch_loss.value(), seconds.count()};
  if (epoch_.elements > 0)
    end.padded_share = static_cast<double>(epoch_.padding) / static_cast<double>(epoch_.elements);
  return end;
}

/// Waits for the steps that are launched. The wait belongs to them; what follows belongs to no step.
void TrainingLoop::finish_steps() {
  readback_.drain();
  const double waited = clock_.elapsed();
  flop_rate_.add_wait(waited);
  if (run_.world.device().is_cuda())  // on CPU ranks the steps themselves have waited
    run_.folder->metric(
        {{"kind", "event"}, {"event", "wait"}, {"step", run_.state.at.global_step}, {"seconds", waited}});
  watch_.act(/*all_are_read=*/true);
}

/// @throws StoppedBySignal, when a signal ends an evaluation
RunResult TrainingLoop::end() {
  comm::flight::set_phase(comm::flight::Phase::finish);
  const auto averaged = run_.boosted.use_average();
  if (evaluations_.is_final_due()) evaluations_.evaluate();
  if (run_.is_stopped_by_signal()) throw_stopped();
  if (options().run.peak_tflops && !flop_rate_.problem().empty())
    run_.setup.log.warn(
        "run.peak_tflops has no effect, because the FLOPs of this model cannot be counted ({}); remove it",
        flop_rate_.problem());
  try {
    auto result = finish(run_, begin_, local_samples_, flop_rate_.mean());
    run_.call(&RunCallback::on_finish, result);
    return result;
  } catch (const EvaluationStopped&) {
    throw_stopped();
  }
}

/// Says where the stopped run was saved, and throws StoppedBySignal. Collective.
void TrainingLoop::throw_stopped() {
  // Some ranks may have got none.
  const auto number =
      comm::reduce_value(run_.world.group(), std::int64_t{StopSignals::received()}, comm::ReduceOp::max);
  const StoppedBySignal stopped(static_cast<int>(number), saves_.newest());
  const auto step = run_.state.at.global_step;
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

}  // namespace trireme::train
