#include "core/train/best_weights.h"

#include <string_view>

namespace trireme::train {

void BestWeights::on_evaluate(RunContext& run, const Evaluation& evaluation) {
  if (evaluation.split != std::string_view("validation") ||
      !evaluation.of.better_than(run.state.best, run.prepared.best))
    return;
  run.state.best = evaluation.of;
  model_.save(run.booster, run.run);
}

}  // namespace trireme::train
