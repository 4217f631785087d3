#include "core/train/best_weights.h"

#include <string_view>

namespace trireme::train {

void BestWeights::on_evaluate(RunContext& run, const Evaluation& evaluation) {
  if (evaluation.split != std::string_view("validation")) return;
  auto& state = run.state;
  if (!evaluation.of.better_than(state.best, run.prepared.best)) {
    // A stop has an evaluation that the training without it has not; a resumed run must count the same ones.
    const auto every = run.prepared.config.train.eval_every.value_or(0);
    const bool scheduled =
        state.at.step_in_epoch == run.run.loader->steps_per_epoch() || (every > 0 && state.at.global_step % every == 0);
    state.evaluations_since_best += scheduled ? 1 : 0;
    return;
  }
  state.best = evaluation.of;
  state.evaluations_since_best = 0;
  model_.save(run.booster, run.run);
}

void EarlyStop::check(RunContext& run) const {
  if (run.stopped_by.empty() && run.state.evaluations_since_best >= patience_) run.stopped_by = "train.patience";
}

}  // namespace trireme::train
