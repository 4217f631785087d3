// A whole run from a prepared configuration: what `trireme train` and `trireme eval` do.
#pragma once

#include <string>

#include "core/comm/world.h"
#include "core/train/console.h"
#include "core/train/evaluate.h"
#include "core/train/prepare.h"

namespace trireme::train {

/// Trains, evaluates each epoch, writes the run folder (rank 0 made it in open_run() before the world started).
/// Collective over the world. @throws Error of any kind; NonFiniteError when a loss is not finite.
class RunFolder;
std::unique_ptr<RunFolder> open_run(const Prepared& prepared);
void run_training(Prepared prepared, comm::World& world, RunFolder& folder, Terminal terminal);

/// Evaluates the prepared weights on the test split, or validation where there is none, and prints the result.
EvalResult run_evaluation(Prepared prepared, comm::World& world, Terminal terminal);

}  // namespace trireme::train
