#include "core/train/best_weights.h"

#include <string_view>

namespace trireme::train {

void BestWeights::on_evaluate(RunContext& run, const Evaluation& evaluation) {
  if (evaluation.split != std::string_view("validation")) return;
  auto& state = run.state;
  if (!evaluation.of.better_than(state.best, run.prepared.best)) {
    ++state.evaluations_since_best;
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
