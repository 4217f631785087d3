#include "core/optim/optimizers.h"

namespace trireme::optim {

Registry<OptimizerFactory> all_optimizers() {
  Registry<OptimizerFactory> optimizers("optimizer");
  optimizers.add(hybrid_adam()).add(sgd()).add(lion()).add(lamb()).add(lars());
  return optimizers;
}

Registry<CurveFactory> all_curves() {
  Registry<CurveFactory> curves("schedule");
  curves.add(constant()).add(linear()).add(cosine()).add(polynomial()).add(step_drops()).add(milestone_drops());
  curves.add(one_cycle()).add(exponential()).add(warmup_stable_decay());
  return curves;
}

}  // namespace trireme::optim
