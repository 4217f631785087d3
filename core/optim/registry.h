// The optimizers and learning-rate schedules that [optimizer] name and [schedule] name select.
#pragma once

#include "core/base/registry.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"

namespace trireme::optim {

Registry<OptimizerFactory> all_optimizers();
Registry<CurveFactory> all_curves();

}  // namespace trireme::optim
