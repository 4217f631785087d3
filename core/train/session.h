// A complete run from a prepared configuration: the work of `trireme train` and `trireme eval`.
#pragma once

#include <string>

#include "core/comm/world.h"
#include "core/train/console.h"
#include "core/train/evaluate.h"
#include "core/train/prepare.h"

namespace trireme::train {

class RunFolder;
/// Trains, evaluates after each epoch and writes the run folder (see open_run()). With `timeline` it also writes
/// timeline.json, which covers three steps after the first two. Collective over the world. @throws Error of any kind;
/// NonFiniteError when a loss is not finite.
void run_training(Prepared prepared, comm::World& world, RunFolder& folder, Terminal terminal, bool timeline = false);

/// Evaluates the prepared weights on the validation split and, if there is one, on the test split, and prints both
/// results. Returns the last result.
EvalResult run_evaluation(Prepared prepared, comm::World& world, Terminal terminal);

}  // namespace trireme::train
