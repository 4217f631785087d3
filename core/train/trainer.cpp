// The training loop. What else happens in a run is in its callbacks (callback.h), and its end in finish.h.
#include "core/train/trainer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/booster/run_state.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/launch/parent.h"
#include "core/train/deterministic.h"
#include "core/train/early_stop.h"
#include "core/train/epoch_table.h"
#include "core/train/finish.h"
#include "core/train/lora.h"
#include "core/train/metrics_file.h"
#include "core/train/out_of_memory.h"
#include "core/train/pretrained.h"
#include "core/train/resume.h"
#include "core/train/tensorboard.h"

namespace trireme::train {
namespace {

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The callbacks of a program's run.
Callbacks program_callbacks(const TrainingArguments& arguments, const Callbacks& own) {
  Callbacks callbacks{std::make_shared<EpochTable>(arguments.logging_steps), std::make_shared<MetricsFile>()};
  if (arguments.tensorboard) callbacks.push_back(std::make_shared<TensorBoard>());
  if (arguments.early_stopping_patience)
    callbacks.push_back(std::make_shared<EarlyStop>(*arguments.early_stopping_patience));
  if (arguments.stop_on_signals) callbacks.push_back(std::make_shared<StopOnRequest>(std::nullopt, true, 0));
  callbacks.insert(callbacks.end(), own.begin(), own.end());
  return callbacks;
}

}  // namespace

Trainer::Trainer(comm::World& world, const TrainingArguments& arguments, TrainerInputs inputs)
    : Trainer(prepare_program(world, arguments, inputs), world, nullptr,
              program_callbacks(arguments, inputs.callbacks)) {}

Trainer::Trainer(Prepared prepared, comm::World& world, std::unique_ptr<RunFolder> folder, Callbacks callbacks)
    : p_(std::move(prepared)),
      world_(world),
      folder_(folder ? std::move(folder) : open_run(p_)),
      callbacks_(std::move(callbacks)),
      best_model_(folder_->dir(), exported_texts(p_), p_.config.lora),
      booster_(world, std::move(p_.plugin), booster_options(p_), &p_.log),
      flop_rate_([this] { return model_source(p_).model; }),
      numbers_(p_.config.train, state_.numbers),
      context_{p_, world_, *folder_, booster_, run_, state_, best_model_} {
  if (p_.config.run.on_save_error != "stop") folder_->bear_errors(p_.log);
  context_.say = [this](const std::string& line) { call(&RunCallback::on_message, line); };
}

Trainer::~Trainer() = default;

RunResult Trainer::train() {
  TRIREME_REQUIRE(!result_,
                  "train() was called twice; destroy this Trainer and make another one, which may resume from its "
                  "folder");
  try {
    with_memory_remedy([this] { with_deterministic_remedy(p_.config, [this] { run_all(); }); },
                       [this] {
                         if (may_retry()) parent::may_fit_with((p_.micro_batch + 1) / 2);
                         return memory_remedy();
                       });
  } catch (const StoppedBySignal&) {
    throw;  // no error
  } catch (...) {
    // The error is said before the disk is waited for, which may be what hangs.
    if (saver_) saver_->cancel();
    report_error(std::current_exception());
    if (saver_) saver_->abandon();
    throw;
  }
  return *result_;
}

void Trainer::run_all() {
  start();
  while (!is_over() || (state_.evaluation_pending && !is_stopped_by_signal())) {
    try {
      train_epoch();
    } catch (const ReturnToCheckpoint& back) {
      return_to(back);
      continue;
    }
    if (is_epoch_done() && !state_.evaluation_pending) {
      ++state_.at.epoch;
      state_.at.step_in_epoch = 0;
    }
    if (p_.plan.saves_epochs || is_over() || is_save_due()) save();
  }
  settle_save();
  saver_.reset();  // with its memory
  if (is_stopped_by_signal()) throw_stopped();
  result_ = end();
  warn_if_unrecorded("");
  if (p_.plan.loads_best_at_end && !result_->best_is_last() && !best_model_.load(run_))
    context_.say("the model keeps the last weights, because there are no best ones that every rank can read");
}

void Trainer::start() {
  boost();
  if (p_.config.run.keep_checkpoints > 0) storage_ = checkpoint::find_storage(folder_->dir(), world_);
  remove_leftovers_elsewhere();
  context_.resumed_from = resume(p_, *folder_, run_, state_, best_model_);
  set_aside_elsewhere(is_checkpoint_of(folder_->dir(), context_.resumed_from) ? state_.at.global_step : -1);
  context_.resumed_at = state_.at.global_step;
  saved_ = context_.resumed_from;
  comm::flight::note_unsaved(what_is_unsaved(context_.resumed_at));
  context_.peak_flops = peak_of_all();
  prepare_saver();
  call(&RunCallback::on_start);
  if (numbers_.may_need_checkpoint() && !is_checkpoint_of(folder_->dir(), saved_)) save();
  begin_ = Clock::now();
}

void Trainer::train_epoch() {
  const auto epoch_begin = Clock::now();
  const auto goes_on = [this] { return !is_over() && !is_epoch_done(); };
  if (state_.at.step_in_epoch == 0) state_.epoch_loss = {};
  elements_ = padding_ = 0;
  run_.loader->start_epoch(state_.at.epoch, state_.at.step_in_epoch);
  if (std::exchange(state_.evaluation_pending, false) && !is_epoch_done()) validate(std::nullopt);
  clock_.start();
  while (goes_on()) {
    const auto batch = next_batch();
    if (!batch) break;
    if (numbers_.leaves_out(state_.at.global_step + 1))
      pass_over();
    else
      train_step(*batch);
    if (goes_on() && (is_evaluation_due() || is_save_due())) {
      finish_steps();
      if (is_evaluation_due()) validate(std::nullopt);
      if (!is_over() && is_save_due()) save();
      clock_.start();
    }
  }
  finish_steps();
  if (!is_stopped_by_signal() && is_epoch_evaluation_due()) {
    // An evaluation within an epoch that only the training's end causes: a run that is resumed must not know of it.
    if (!is_epoch_done() && !is_evaluation_due()) save();
    validate(epoch_begin);
  }
  const bool goes_on_later = is_stopped_by_signal();
  state_.evaluation_pending = goes_on_later && is_epoch_evaluation_due() && (is_epoch_done() || is_evaluation_due());
  if (!goes_on_later || (is_epoch_done() && !state_.evaluation_pending))
    call(&RunCallback::on_epoch_end, epoch_end(epoch_begin));
}

std::optional<data::StepBatch> Trainer::next_batch() {
  comm::flight::set_phase(comm::flight::Phase::data);
  return run_.loader->next();
}

void Trainer::train_step(const data::StepBatch& batch) {
  call(&RunCallback::on_step_begin);
  vote();
  const auto step = run_.train_step(batch);
  auto& at = state_.at;
  ++at.global_step;
  ++at.step_in_epoch;
  at.samples += batch.global_samples;
  local_samples_ += batch.local_samples;
  elements_ += batch.elements;
  padding_ += batch.padding;
  const auto flops = world_.rank() == 0 ? flop_rate_.of_step(batch) : std::nullopt;
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
  call(&RunCallback::on_step_end, StepEnd{step, batch, time.seconds, time.data, time.communication});
  if (unrecorded_.launched(Readback::lag(world_.device()))) throw_if_unrecorded();
  poll_save();
  act_on_numbers(/*all_are_read=*/false);
  compare_replicas();
}

/// Completes the step's log when its numbers are on the host, and passes it on.
void Trainer::read_back(const TrainStep& step, const data::StepBatch& batch, StepLog log) {
  const auto& divisor = batch.micro.front().global_weight;
  const bool on_host = divisor.is_cpu();
  numbers_.launched();
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
                  state_.skipped += log.skipped ? 1 : 0;
                  unrecorded_.read(log.votes.any(Vote::unrecorded));
                  written_.read(!log.votes.any(Vote::saving));
                  save_failed_.read(log.votes.any(Vote::save_failed));
                  state_.epoch_loss.add(log.loss, log.weight);
                  if (log.flops) flop_rate_.add(*log.flops, log.seconds);
                  const bool stopped = !context_.stopped_by.empty();
                  call(&RunCallback::on_log, log);
                  judge(log);
                  TRIREME_REQUIRE(stopped || context_.stopped_by.empty() || world_.device().is_cpu(),
                                  "a callback has set stopped_by in on_log(), to which GPU ranks come at different "
                                  "steps; set it in on_step_end() or on_evaluate()");
                });
}

EpochEnd Trainer::epoch_end(Clock::time_point begin) const {
  EpochEnd end{epoch_number(), state_.epoch_loss.value(), since(begin)};
  if (elements_ > 0) end.padded_share = static_cast<double>(padding_) / static_cast<double>(elements_);
  return end;
}

/// Waits for the steps that are launched. The wait belongs to them; what follows belongs to no step.
void Trainer::finish_steps() {
  readback_.drain();
  flop_rate_.add_wait(clock_.elapsed());
  act_on_numbers(/*all_are_read=*/true);
}

/// Evaluates on the validation split. `epoch_begin`: set at the end of an epoch. @pre finish_steps()
void Trainer::validate(const std::optional<Clock::time_point>& epoch_begin) {
  const comm::flight::PhaseScope phase(comm::flight::Phase::evaluate);
  const auto averaged = run_.use_average();
  EvalResult eval;
  try {
    stops_.emplace(world_);
    eval = train::evaluate(run_, validation_loader(), nullptr, nullptr, [this] { end_if_stopped(); });
  } catch (const EvaluationStopped&) {
    context_.stopped_by = StopOnRequest::kBySignal;
    return;
  }
  if (!std::isfinite(eval.loss)) settle_save();  // so that the checkpoint in flight need not be lost
  BadNumbers::check_validation(epoch_number(), eval.loss);
  record_evaluation(eval, epoch_begin ? std::optional(epoch_end(*epoch_begin)) : std::nullopt);
}

/// Decides whether an evaluation is the best so far, counts for early stopping, reports it, and keeps the best weights.
void Trainer::record_evaluation(const EvalResult& eval, const std::optional<EpochEnd>& epoch) {
  state_.last = {epoch_number(), state_.at.global_step, {{kLoss, eval.loss}}};
  for (const auto& [metric, value] : eval.metrics) state_.last.values[metric.name] = value;
  const auto best_before = state_.best;
  const auto since_best = state_.evaluations_since_best;
  const bool is_best = state_.last.better_than(best_before, p_.best);
  if (is_best) state_.best = state_.last;
  state_.evaluations_since_best = is_best ? 0 : since_best + 1;
  call(&RunCallback::on_evaluate,
       Evaluation{.split = "validation", .result = eval, .of = state_.last, .is_best = is_best, .epoch = epoch});
  if (is_best && p_.plan.keeps_best && !keep_best()) {  // the earlier weights are kept
    state_.best = best_before;
    state_.evaluations_since_best = since_best + 1;
  }
}

RunResult Trainer::end() {
  comm::flight::set_phase(comm::flight::Phase::finish);
  const auto averaged = run_.use_average();
  // The training ended between two evaluations, or a run with nothing left to train was resumed, perhaps with another
  // metric.
  const bool evaluates = p_.data.validation && (p_.plan.evaluates_epochs || p_.config.train.eval_every);
  if (evaluates && (state_.last.step != state_.at.global_step || !state_.last.values.contains(p_.shown.name) ||
                    !state_.last.values.contains(p_.best.name)))
    validate(std::nullopt);
  if (is_stopped_by_signal()) throw_stopped();
  if (p_.config.run.peak_tflops && !flop_rate_.problem().empty())
    p_.log.warn("run.peak_tflops has no effect, because the FLOPs of this model cannot be counted ({}); remove it",
                flop_rate_.problem());
  auto result = finish_run();
  call(&RunCallback::on_finish, result);
  return result;
}

/// @throws StoppedBySignal, when a signal ends an evaluation
RunResult Trainer::finish_run() {
  stops_.emplace(world_);
  try {
    return finish(context_,
                  {.seconds = [this] { return since(begin_); },
                   .local_samples = local_samples_,
                   .flops_per_s = flop_rate_.mean(),
                   .report = [this](const Evaluation& evaluation) { call(&RunCallback::on_evaluate, evaluation); },
                   .before_batch = [this] { end_if_stopped(); }});
  } catch (const EvaluationStopped&) {
    throw_stopped();
  }
}

}  // namespace trireme::train
