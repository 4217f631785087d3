#include "core/train/run_evaluations.h"

#include <cmath>

#include "core/base/error.h"
#include "core/comm/flight/recorder.h"
#include "core/train/bad_numbers.h"
#include "core/train/evaluate.h"
#include "core/train/stop.h"

namespace trireme::train {

bool RunEvaluations::is_epoch_due() const {
  const auto& state = run_.state;
  return (run_.setup.plan.evaluates_epochs || is_due()) && state.last.step != state.at.global_step;
}

bool RunEvaluations::is_final_due() const {
  const auto& setup = run_.setup;
  const auto& last = run_.state.last;
  if (!setup.data.validation || !(setup.plan.evaluates_epochs || setup.config.train.eval_every)) return false;
  // The training ended between two evaluations, or a run with nothing left to train was resumed, perhaps with another
  // metric.
  return last.step != run_.state.at.global_step || !last.values.contains(setup.task.shown.name) ||
         !last.values.contains(setup.task.best.name);
}

data::Loader& RunEvaluations::loader() {
  const auto& setup = run_.setup;
  TRIREME_REQUIRE(setup.data.validation != nullptr, "the Trainer has no evaluation data; pass TrainerInputs::eval");
  if (!loader_) loader_ = run_.boosted.evaluation_loader(setup.data.validation, setup.batch.eval);
  return *loader_;
}

void RunEvaluations::evaluate(const std::function<EpochEnd()>& epoch_end) {
  const comm::flight::PhaseScope phase(comm::flight::Phase::evaluate);
  const auto averaged = run_.boosted.use_average();
  EvalResult eval;
  try {
    eval = train::evaluate(run_.boosted, loader(), nullptr, nullptr, end_on_signal(run_.world));
  } catch (const EvaluationStopped&) {
    run_.stopped_by = StopOnRequest::kBySignal;
    return;
  }
  if (!std::isfinite(eval.loss)) saves_.settle();  // so that the checkpoint in flight need not be lost
  BadNumbers::check_validation(run_.epoch_number(), eval.loss);
  record(eval, epoch_end ? std::optional(epoch_end()) : std::nullopt);
}

/// Decides whether an evaluation is the best so far, counts for early stopping, reports it, and keeps the best weights.
void RunEvaluations::record(const EvalResult& eval, const std::optional<EpochEnd>& epoch) {
  auto& state = run_.state;
  state.last = {run_.epoch_number(), state.at.global_step, {{kLoss, eval.loss}}};
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

}  // namespace trireme::train
