// A complete run from a prepared configuration: the work of `trireme train` and `trireme eval`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/comm/world.h"
#include "core/train/console.h"
#include "core/train/evaluate.h"
#include "core/train/prepare.h"

namespace trireme::train {

class RunCallback;
class RunFolder;

struct RunOptions {
  Terminal terminal{};
  bool timeline = false;  ///< also write timeline.json, which covers three steps after the first two
  std::vector<std::shared_ptr<RunCallback>> callbacks{};  ///< see callback.h
};
/// Trains, evaluates after each epoch and writes the run folder (see open_run()). Collective over the world.
/// @throws Error of any kind; NonFiniteError when a loss is not finite.
void run_training(Prepared prepared, comm::World& world, RunFolder& folder, RunOptions options);

/// Evaluates the prepared weights on the validation split and, if there is one, on the test split, and prints both
/// results. Returns the last result.
EvalResult run_evaluation(Prepared prepared, comm::World& world, Terminal terminal);

}  // namespace trireme::train
