// A whole run from a prepared configuration: what `trireme train` and `trireme eval` do.
#pragma once

#include <string>

#include "core/comm/world.h"
#include "core/train/console.h"
#include "core/train/evaluate.h"
#include "core/train/prepare.h"

namespace trireme::train {

class RunFolder;
/// Trains, evaluates each epoch, writes the run folder (see open_run()); with `timeline` its timeline.json, of three
/// steps after the first two. Collective over the world. @throws Error of any kind; NonFiniteError when a loss is not
/// finite.
void run_training(Prepared prepared, comm::World& world, RunFolder& folder, Terminal terminal, bool timeline = false);

/// Evaluates the prepared weights on the validation split and, where there is one, the test split, and prints both.
/// Returns the last.
EvalResult run_evaluation(Prepared prepared, comm::World& world, Terminal terminal);

}  // namespace trireme::train
